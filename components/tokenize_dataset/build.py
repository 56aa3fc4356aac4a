"""From rows to the files of a data set."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from components.tokenize_dataset.cut import long_documents
from components.tokenize_dataset.encode import Setup
from components.tokenize_dataset.malformed import NUM_NAMED
from components.tokenize_dataset.mix import passes, repeats
from components.tokenize_dataset.prompts import write_prompts
from components.tokenize_dataset.read import find_shape, read
from components.tokenize_dataset.shapes import STRINGS, Shape
from components.tokenize_dataset.split import Fate, split
from components.tokenize_dataset.spool import Spool, array_on_disk
from components.tokenize_dataset.statistics import SourceStatistics
from components.tokenize_dataset.statistics_page import Example, render_statistics
from components.tokenize_dataset.write import SampleCounts, SampleWriter
from training.config import DataConfig
from training.errors import UserError
from training.sources.rows import Source
from training.store import fingerprint

_BYTES_A_TOKEN = 8
"""Of a packed sample: id and label."""


@dataclass(frozen=True)
class Sources:
    """The sources of a run.

    Attributes:
        train: Rows to train on.
        heldout: Rows to evaluate on; empty to hold out some of `train`.
    """

    train: tuple[Source, ...]
    heldout: tuple[Source, ...]

    @property
    def all(self) -> tuple[Source, ...]:
        """Those to train on first."""
        return self.train + self.heldout


def build(
    staging: Path, data: DataConfig, tokenizer: Any, sources: Sources, note: Callable[[str], None]
) -> dict[str, Any]:
    """Write train.arrow, heldout.arrow, prompts.jsonl and statistics.html.

    The memory that it takes does not grow with the data: encoded rows wait on the disk, in `staging`, until it is
    decided what becomes of each.

    Args:
        staging: Folder to write into.
        data: The config.
        tokenizer: The model's.
        sources: The rows.
        note: Is told what people should know.

    Returns:
        What the manifest records.

    Raises:
        UserError: The rows cannot be used; names them.
    """
    given = data.train_sources + data.heldout_sources
    shapes = [find_shape(source, config) for source, config in zip(sources.all, given, strict=True)]
    for source, shape in zip(sources.all, shapes, strict=True):
        note(f"{source.name}: {shape.sentence()}")
        if shape.form == STRINGS and tokenizer.chat_template:
            note(
                f"{source.name}: prompts are given to the model as they are, without its chat template; to teach "
                "chats, set data.format to instruction and data.columns to {instruction: …, output: …}"
            )
    setup = Setup(data, shapes, len(sources.train), tokenizer)
    with tempfile.TemporaryDirectory(prefix="spool.", dir=staging) as temporary:
        folder = Path(temporary)
        spool = Spool(folder)
        readings = read(setup, sources.all, spool, note)
        fates = split(spool, data, [source.name for source in sources.all], len(sources.train), folder)
        statistics = [
            SourceStatistics(source, config.source, shape, reading, _long_documents(data, shape))
            for source, config, shape, reading in zip(sources.all, given, shapes, readings, strict=True)
        ]
        for number, each in enumerate(statistics):
            each.count(spool, number, fates)
        heldout_fingerprint = _write_samples(staging, data, spool, fates, statistics, len(sources.train))
        write_prompts(staging / "prompts.jsonl", setup, sources.all, spool, fates)
        facts = _facts(data, tokenizer, sources, statistics) | {"heldout_fingerprint": heldout_fingerprint}
        examples = [_example(spool, number, fates, tokenizer) for number in range(len(sources.train))]
        page = render_statistics(data, facts, statistics, examples)
        (staging / "statistics.html").write_text(page, encoding="utf-8")
    return facts


def _write_samples(
    staging: Path,
    data: DataConfig,
    spool: Spool,
    fates: np.ndarray,
    statistics: Sequence[SourceStatistics],
    num_train: int,
) -> str:
    """Write both files, and return the fingerprint of the held-out documents."""
    mixed = passes(
        [each.train_tokens_of_a_pass for each in statistics[:num_train]],
        [source.weight for source in data.train_sources],
    )
    _check_room(staging, statistics, num_train)
    digest = hashlib.sha256()
    arrangement = (spool, data.sequence_length, data.packing)
    with (
        SampleWriter(staging / "train.arrow", *arrangement) as train,
        SampleWriter(staging / "heldout.arrow", *arrangement, digest) as heldout,
    ):
        for number, each in enumerate(statistics):
            if number < num_train:
                times = _times(spool, number, fates, mixed[number])
                each.passes = times.total / max(1, each.fates[Fate.TRAIN])
                each.train = train.write(
                    number, *(partial(times.above, each_pass) for each_pass in range(times.most))
                )
            each.heldout = heldout.write(number, lambda rows: fates[rows] == Fate.HELDOUT)
    return digest.hexdigest()[:16]


class _Times:
    """How often each row of a source is trained on.

    Args:
        first: Number of its first row.
        times: uint32 [rows].
    """

    def __init__(self, first: int, times: np.ndarray) -> None:
        self._first = first
        self._times = times

    @property
    def most(self) -> int:
        """Of all rows."""
        return int(self._times.max(initial=0))

    @property
    def total(self) -> int:
        """Of all rows together."""
        return int(self._times.sum(dtype=np.int64))

    def above(self, number: int, rows: np.ndarray) -> np.ndarray:
        """Which rows are taken in the pass of this number, counted from 0."""
        above: np.ndarray = self._times[rows - self._first] > number
        return above


def _times(spool: Spool, number: int, fates: np.ndarray, num_passes: float) -> _Times:
    extent = spool.range_of(number)
    # On disk, like all that grows with the rows.
    times = array_on_disk(spool.folder / f"times-{number}", np.uint32, len(extent))
    least, of_least = 2**64, 0
    for first, rows in spool.rows(number):
        start = first - extent.start
        (chosen,) = (fates[first : first + len(rows)] == Fate.TRAIN).nonzero()
        times[start + chosen] = repeats(rows["hash"][chosen], num_passes)
        hashes = rows["hash"][chosen, 1]
        if len(chosen) and int(hashes.min()) < least:
            least, of_least = int(hashes.min()), start + int(chosen[hashes.argmin()])
    if not times.any():
        # Too few rows for so small a share: that which would be taken first, so that no source is lost.
        times[of_least] = 1
    return _Times(extent.start, times)


def _check_room(staging: Path, statistics: Sequence[SourceStatistics], num_train: int) -> None:
    # The mix does not change how long an epoch is.
    tokens = sum(each.train_tokens_of_a_pass for each in statistics[:num_train])
    needed, free = tokens * _BYTES_A_TOKEN, shutil.disk_usage(staging).free
    if needed > free:
        raise UserError(
            f"the packed samples need {needed / 2**30:.1f} GiB, but the store has {free / 2**30:.1f} GiB free: "
            "free some space, choose another store, or set data.max_train_rows"
        )


def _facts(
    data: DataConfig, tokenizer: Any, sources: Sources, statistics: Sequence[SourceStatistics]
) -> dict[str, Any]:
    train, heldout = (_total([getattr(each, part) for each in statistics]) for part in ("train", "heldout"))
    formats = list(dict.fromkeys(each.shape.format for each in statistics))
    templated = (
        any(format in ("chat", "instruction") for format in formats) and tokenizer.chat_template is not None
    )

    def total(fate: Fate) -> int:
        return sum(each.fates[fate] for each in statistics)

    return {
        "source": " + ".join(source.name for source in sources.train),
        "revision": " + ".join(source.revision for source in sources.train),
        "format": " + ".join(formats),
        "packing": data.packing,
        "num_train_rows": total(Fate.TRAIN),
        "num_heldout_rows": total(Fate.HELDOUT),
        "num_train_documents": train.num_documents,
        "num_train_samples": train.num_samples,
        "num_train_tokens": train.num_tokens,
        "num_train_supervised": train.num_supervised,
        "num_heldout_samples": heldout.num_samples,
        "num_heldout_tokens": heldout.num_tokens,
        "num_heldout_supervised": heldout.num_supervised,
        # Samples of one document are padded to no more than the longest beside them, so this says nothing there.
        "fill": None if data.packing == "none" else train.num_tokens / (train.num_samples * data.sequence_length),
        "num_truncated": sum(each.num_truncated for each in statistics),
        "num_split": sum(each.num_split for each in statistics),
        "num_unsupervised_dropped": sum(each.num_unsupervised for each in statistics),
        "num_leaked_dropped": total(Fate.LEAKED),
        "num_duplicates_dropped": total(Fate.DUPLICATE),
        "num_malformed": sum(sum(each.reading.left_out.values()) for each in statistics),
        "malformed": [record for each in statistics for record in each.reading.named][:NUM_NAMED],
        "sequence_length": data.sequence_length,
        "vocab_size": len(tokenizer),
        "max_token_id": max(train.max_token_id, heldout.max_token_id),
        "eos_token": tokenizer.eos_token,
        "tokenizer_fingerprint": fingerprint(tokenizer=tokenizer.backend_tokenizer.to_str()),
        "template_fingerprint": fingerprint(template=tokenizer.get_chat_template()) if templated else None,
        "train_sources": [each.facts(Fate.TRAIN) for each in statistics[: len(sources.train)]],
        "heldout_sources": [each.facts(Fate.HELDOUT) for each in statistics if each.fates[Fate.HELDOUT]],
    }


def _long_documents(data: DataConfig, shape: Shape) -> str:
    return long_documents(data.model_copy(update={"format": shape.format}))


def _total(counts: Sequence[SampleCounts]) -> SampleCounts:
    return SampleCounts(
        num_samples=sum(each.num_samples for each in counts),
        num_documents=sum(each.num_documents for each in counts),
        num_tokens=sum(each.num_tokens for each in counts),
        num_supervised=sum(each.num_supervised for each in counts),
        max_token_id=max((each.max_token_id for each in counts), default=-1),
    )


def _example(spool: Spool, number: int, fates: np.ndarray, tokenizer: Any) -> Example:
    """The first document of a source that is trained on."""
    for documents in spool.documents(number):
        (places,) = (fates[documents.row] == Fate.TRAIN).nonzero()
        if len(places):
            chosen = slice(places[0], places[0] + 1)
            return Example.of(spool.read_tokens(documents.start[chosen], documents.length[chosen]), tokenizer)
    raise AssertionError("a source without a row to train on was refused")
