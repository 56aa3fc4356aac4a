"""Encoded rows on disk, between the reading of all sources and the packing of what is kept of them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from training.data import IGNORE

ROW = np.dtype(
    [
        ("hash", "<u8", 2),
        ("num_documents", "<u4"),
        ("num_kept_tokens", "<u4"),
        ("num_supervised", "<u4"),
        ("num_tokens", "<u4"),
        ("num_unsupervised", "<u4"),
        ("num_texts", "<u4"),
        ("num_long", "<u4"),
    ]
)
"""A row: its hash, in two halves; its documents, and their tokens and supervised ones; its tokens before it was
cut, and its pieces that were dropped, as they had no supervised token; its texts, and how many are longer than a
sample."""

DOCUMENT = np.dtype("<u4")
"""A document: its number of tokens."""

TOKEN = np.dtype("<i4")
"""A token's id; with the sign bit set where the next one is supervised."""

_SIGN = np.int32(-(2**31))

_ROWS_AT_ONCE = 1 << 16


class EncodedRows(NamedTuple):
    """Rows of one source, encoded, in their order.

    Attributes:
        rows: `ROW` [rows].
        documents: `DOCUMENT` [documents], row by row.
        tokens: `TOKEN` [tokens], document by document.
        prompts: What rows ask that may be held out, by the row's place.
    """

    rows: np.ndarray
    documents: np.ndarray
    tokens: np.ndarray
    prompts: dict[int, dict[str, str]]

    def first(self, num_rows: int) -> "EncodedRows":
        """The first rows alone."""
        rows = self.rows[:num_rows]
        documents = self.documents[: rows["num_documents"].sum()]
        prompts = {place: prompt for place, prompt in self.prompts.items() if place < num_rows}
        return EncodedRows(rows, documents, self.tokens[: documents.sum()], prompts)


def as_tokens(input_ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """`TOKEN` [tokens] of ids and shifted labels, int32 [tokens]."""
    tokens: np.ndarray = np.where(labels != IGNORE, input_ids | _SIGN, input_ids)
    return tokens


def as_ids_and_labels(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of `as_tokens`. The last token of a document is never followed by a supervised one."""
    ids = tokens & ~_SIGN
    labels = np.full_like(ids, IGNORE)
    np.copyto(labels[:-1], ids[1:], where=tokens[:-1] < 0)
    return ids, labels


@dataclass
class _Extent:
    """Where the parts of a source begin, and how many there are."""

    first_row: int
    first_document: int
    first_token: int
    num_rows: int = 0
    num_documents: int = 0
    num_tokens: int = 0


class Rows(NamedTuple):
    """Some rows of a source, one after another.

    Attributes:
        first: Number of the first, counted through all sources.
        rows: `ROW` [rows].
    """

    first: int
    rows: np.ndarray


class Documents(NamedTuple):
    """Documents of some rows.

    Attributes:
        row: int64 [documents]; the row of each, counted through all sources.
        start: int64 [documents]; its first token, counted through all sources.
        length: int64 [documents]; its tokens.
    """

    row: np.ndarray
    start: np.ndarray
    length: np.ndarray


@dataclass
class Spool:
    """Encoded rows of several sources, appended one source after another, then read in parts of bounded size.

    Args:
        folder: Empty; on the disk that has room for four bytes a token.
    """

    folder: Path
    _extents: list[_Extent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._files = {
            name: (self.folder / name).open("wb") for name in ("rows", "documents", "tokens", "prompts")
        }

    def begin_source(self) -> None:
        """What is appended from here on is of the next source."""
        last = self._extents[-1] if self._extents else _Extent(0, 0, 0)
        self._extents.append(
            _Extent(
                last.first_row + last.num_rows,
                last.first_document + last.num_documents,
                last.first_token + last.num_tokens,
            )
        )

    def append(self, encoded: EncodedRows) -> None:
        """Add rows to the source that was begun last."""
        extent = self._extents[-1]
        for place, prompt in encoded.prompts.items():
            line = json.dumps([extent.first_row + extent.num_rows + place, prompt])
            self._files["prompts"].write(line.encode() + b"\n")
        for name, values, dtype in (
            ("rows", encoded.rows, ROW),
            ("documents", encoded.documents, DOCUMENT),
            ("tokens", encoded.tokens, TOKEN),
        ):
            assert values.dtype == dtype
            self._files[name].write(np.ascontiguousarray(values).data)
        extent.num_rows += len(encoded.rows)
        extent.num_documents += len(encoded.documents)
        extent.num_tokens += len(encoded.tokens)

    def close(self) -> None:
        """Nothing more is appended."""
        for file in self._files.values():
            file.close()

    @property
    def num_sources(self) -> int:
        """Sources that were begun."""
        return len(self._extents)

    @property
    def num_rows(self) -> int:
        """Rows of all sources."""
        return sum(extent.num_rows for extent in self._extents)

    def range_of(self, source: int) -> range:
        """Numbers of a source's rows, counted through all sources."""
        extent = self._extents[source]
        return range(extent.first_row, extent.first_row + extent.num_rows)

    def rows(self, source: int) -> Iterator[Rows]:
        """A source's rows."""
        extent = self._extents[source]
        with (self.folder / "rows").open("rb") as file:
            file.seek(extent.first_row * ROW.itemsize)
            for start in range(0, extent.num_rows, _ROWS_AT_ONCE):
                count = min(_ROWS_AT_ONCE, extent.num_rows - start)
                yield Rows(extent.first_row + start, np.fromfile(file, ROW, count))

    def documents(self, source: int) -> Iterator[Documents]:
        """A source's documents, those of some rows at a time."""
        extent = self._extents[source]
        next_token = extent.first_token
        with (self.folder / "documents").open("rb") as file:
            file.seek(extent.first_document * DOCUMENT.itemsize)
            for first, rows in self.rows(source):
                counts = rows["num_documents"]
                length = np.fromfile(file, DOCUMENT, int(counts.sum())).astype(np.int64)
                ends = next_token + np.cumsum(length)
                yield Documents(np.repeat(np.arange(first, first + len(rows)), counts), ends - length, length)
                next_token += int(length.sum())

    def read_tokens(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The tokens of documents, one after another; neighbours are read in one go.

        Args:
            starts: int64 [documents]; ascending.
            lengths: int64 [documents].

        Returns:
            `TOKEN` [tokens].
        """
        tokens = np.empty(int(lengths.sum()), TOKEN)
        (breaks,) = np.nonzero(starts[1:] != starts[:-1] + lengths[:-1])
        first = np.concatenate([[0], breaks + 1])
        run_lengths = np.add.reduceat(lengths, first) if len(lengths) else lengths
        done = 0
        with (self.folder / "tokens").open("rb", buffering=0) as file:
            for start, length in zip(starts[first].tolist(), run_lengths.tolist(), strict=True):
                file.seek(start * TOKEN.itemsize)
                _read_into(file, tokens[done : done + length])
                done += length
        return tokens

    def prompts(self) -> Iterator[tuple[int, dict[str, str]]]:
        """The prompts by the number of their row, ascending."""
        with (self.folder / "prompts").open("rb") as file:
            for line in file:
                row, prompt = json.loads(line)
                yield row, prompt


def array_on_disk(path: Path, dtype: type[np.unsignedinteger[Any]], count: int) -> np.ndarray:
    """Zeros [count] in a new file, which is mapped.

    Its room is taken here: of a file of holes, a write for which the disk has no room would end the process.
    """
    with path.open("wb") as file:
        for start in range(0, count, _ROWS_AT_ONCE):
            file.write(np.zeros(min(_ROWS_AT_ONCE, count - start), dtype).data)
    return np.memmap(path, dtype, "r+", shape=(count,))


def _read_into(file: FileIO, values: np.ndarray) -> None:
    view = memoryview(values.data).cast("B")
    while view:
        count = file.readinto(view)
        assert count, "the spool ends early"
        view = view[count:]


def pack_hashes(digests: Sequence[bytes]) -> np.ndarray:
    """Digests of 16 bytes as uint64 [rows, 2]."""
    return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
