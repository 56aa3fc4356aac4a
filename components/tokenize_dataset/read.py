"""All sources into the spool, with what cannot be used left out and counted."""

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from components.tokenize_dataset.encode import EncodedBlock, LeftOut, Setup
from components.tokenize_dataset.malformed import NUM_NAMED, check_malformed, reason_of
from components.tokenize_dataset.row_hash import falls_below
from components.tokenize_dataset.shapes import Shape, detect
from components.tokenize_dataset.spool import EncodedRows, Spool
from components.tokenize_dataset.workers import encode_blocks, usable_cores
from training.config import DataSource
from training.errors import UserError
from training.sources.rows import Block, Malformed, Row, Source, rows_of

_ROWS_FOR_SHAPE = 100
"""First rows of a source that its shape is found from."""

_MOST_REASONS = 20
"""That are told apart, as a reason may hold something of the record after all."""

_NEWS_S = 15.0
"""Time between notes on how far it is."""


@dataclass
class Reading:
    """What reading a source came to, besides what is in the spool.

    Attributes:
        left_out: How many records were left out, by reason.
        named: The first of them, each with what is wrong.
    """

    left_out: Counter[str] = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)

    def leave_out(self, record: Malformed) -> None:
        """Count a record that cannot be used."""
        reason = reason_of(record.problem)
        if reason not in self.left_out and len(self.left_out) >= _MOST_REASONS:
            reason = "is wrong in yet other ways"
        self.left_out[reason] += 1
        if len(self.named) < NUM_NAMED:
            self.named.append(f"{record.origin} {record.problem}")


def find_shape(source: Source, config: DataSource) -> Shape:
    """Find the shape of a source's rows from the first of them.

    Raises:
        UserError: It cannot be told, or none of the first rows can be read.
    """
    first = list(itertools.islice(rows_of(source), _ROWS_FOR_SHAPE))
    rows = [row for row in first if isinstance(row, Row)]
    if first and not rows:
        named = [f"{each.origin} {each.problem}" for each in first[:NUM_NAMED] if isinstance(each, Malformed)]
        raise UserError(f"none of the first {len(first)} records of {source.name} can be read: {'; '.join(named)}")
    return detect(rows, config, source.name)


def read(setup: Setup, sources: Sequence[Source], spool: Spool, note: Callable[[str], None]) -> list[Reading]:
    """Encode all rows of all sources into the spool, in their order.

    Args:
        setup: How they are encoded.
        sources: Those to train on first.
        spool: Empty; is closed at the end.
        note: Is told how far it is.

    Raises:
        UserError: More records than `data.max_malformed_rows` cannot be used, or all of a source, or it cannot be
            read.
        StepFailed: A worker was killed.
    """
    reader = _Reader(setup, sources, spool)
    progress = _Progress(note)
    blocks = encode_blocks(setup, reader.blocks(), setup.data.num_workers or usable_cores())
    with contextlib.closing(blocks):
        for source, block in blocks:
            reader.take(source, block)
            progress.add(len(block.encoded.rows), len(block.encoded.tokens))
    reader.end()
    for number, reading in enumerate(reader.readings):
        if reading.left_out and not spool.range_of(number):
            raise UserError(
                f"no record of {sources[number].name} can be used: {'; '.join(reading.named)}. Mend what is "
                "wrong, or leave it out"
            )
    return reader.readings


class _Reader:
    def __init__(self, setup: Setup, sources: Sequence[Source], spool: Spool) -> None:
        self.readings = [Reading() for _ in sources]
        self._setup = setup
        self._sources = sources
        self._spool = spool
        self._num_train_rows = [0] * len(sources)
        self._num_begun = 0

    def blocks(self) -> Iterator[tuple[int, Block]]:
        for number, source in enumerate(self._sources):
            for block in source.blocks():
                if self._has_enough(number):
                    break
                yield number, block

    def take(self, source: int, block: EncodedBlock) -> None:
        if self._has_enough(source):
            return  # was read ahead
        self._begin(source)
        encoded, left_out = self._within_limit(source, block)
        self._leave_out(source, left_out)
        self._spool.append(encoded)

    def end(self) -> None:
        self._begin(len(self._sources) - 1)
        self._spool.close()

    def _begin(self, source: int) -> None:
        while self._num_begun <= source:
            self._spool.begin_source()
            self._num_begun += 1

    def _limit(self, source: int) -> int | None:
        return self._setup.data.max_train_rows if source < self._setup.first_heldout else None

    def _has_enough(self, source: int) -> bool:
        return self._num_train_rows[source] == self._limit(source)

    def _within_limit(self, source: int, block: EncodedBlock) -> tuple[EncodedRows, list[LeftOut]]:
        limit = self._limit(source)
        if limit is None:
            return block.encoded, block.left_out
        data, hashes = self._setup.data, block.encoded.rows["hash"][:, 0]
        fraction = data.heldout_fraction if data.heldout is None else 0.0
        (places,) = (~falls_below(hashes, fraction)).nonzero()
        wanted = limit - self._num_train_rows[source]
        if len(places) < wanted:
            self._num_train_rows[source] += len(places)
            return block.encoded, block.left_out
        self._num_train_rows[source] = limit
        num_rows = int(places[wanted - 1]) + 1
        return block.encoded.first(num_rows), [each for each in block.left_out if each.place < num_rows]

    def _leave_out(self, source: int, left_out: list[LeftOut]) -> None:
        reading = self.readings[source]
        for each in left_out:
            reading.leave_out(each.record)
        total = sum(sum(reading.left_out.values()) for reading in self.readings)
        named = [record for reading in self.readings for record in reading.named]
        check_malformed(total, self._setup.data.max_malformed_rows, named)


class _Progress:
    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._started = self._told = time.monotonic()
        self._num_rows = self._num_tokens = 0

    def add(self, num_rows: int, num_tokens: int) -> None:
        self._num_rows += num_rows
        self._num_tokens += num_tokens
        now = time.monotonic()
        if now - self._told >= _NEWS_S:
            self._told = now
            rate = self._num_tokens / (now - self._started)
            self._note(f"{self._num_rows:,} rows, {self._num_tokens:,} tokens so far, {rate:,.0f} tokens/s")
