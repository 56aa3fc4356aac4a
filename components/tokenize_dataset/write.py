"""Packing what was chosen of the spool, and writing it as Arrow."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from components.tokenize_dataset.pack import pack
from components.tokenize_dataset.spool import Documents, Spool, as_ids_and_labels
from training.data import IGNORE

Chosen = Callable[[np.ndarray], np.ndarray]
"""Which of rows, int64 [rows], are meant: bool [rows]."""

_TOKENS_OF_A_BATCH = 4_000_000
"""Tokens in a record batch, about."""

_TOKENS_OF_A_WINDOW = 8_000_000
"""Tokens that are packed together. All but the last few samples of a window are as full as without windows."""

_SAMPLES_OF_A_WINDOW = 512
"""Samples of a window, at least."""

_SCHEMA = pa.schema([(name, pa.list_(pa.int32())) for name in ("input_ids", "labels", "lengths")])


@dataclass
class SampleCounts:
    """What packed samples hold."""

    num_samples: int = 0
    num_documents: int = 0
    num_tokens: int = 0
    num_supervised: int = 0
    max_token_id: int = -1


class SampleWriter:
    """An Arrow IPC file of packed samples.

    A row is one sample: input_ids and labels (already shifted, see `Document`) of its documents one after
    another, and their lengths, which say where positions start at 0 again.

    Args:
        path: File to write.
        spool: Where documents are read from.
        sequence_length: Most tokens in a sample.
        packing: `data.packing`.
        fingerprint: Takes in the documents' tokens and labels in the order in which they come, however they are
            packed; names what a loss over them is measured on.
    """

    def __init__(
        self,
        path: Path,
        spool: Spool,
        sequence_length: int,
        packing: str,
        fingerprint: "hashlib._Hash | None" = None,
    ) -> None:
        self._spool = spool
        self._sequence_length = sequence_length
        self._packing = packing
        self._fingerprint = fingerprint
        self._writer = pa.ipc.new_file(path, _SCHEMA)

    def write(self, source: int, *passes: Chosen) -> SampleCounts:
        """Append a source's documents, which share no sample with those of another.

        Args:
            source: Number of the source.
            passes: For each pass through the source, which of its rows are taken.
        """
        counts = SampleCounts()
        documents = itertools.chain.from_iterable(_chosen(self._spool.documents(source), each) for each in passes)
        most_tokens = max(_TOKENS_OF_A_WINDOW, _SAMPLES_OF_A_WINDOW * self._sequence_length)
        for window in windows(documents, most_tokens):
            self._write_window(window, counts)
        return counts

    def _write_window(self, window: Documents, counts: SampleCounts) -> None:
        ids, labels = as_ids_and_labels(self._spool.read_tokens(window.start, window.length))
        lengths = window.length.astype(np.int32)
        ends = np.cumsum(window.length).tolist()
        starts = [0, *ends[:-1]]
        if self._fingerprint is not None:
            for start, end in zip(starts, ends, strict=True):
                self._fingerprint.update((end - start).to_bytes(8, "big"))
                self._fingerprint.update(ids[start:end].data)
                self._fingerprint.update(labels[start:end].data)
        if self._packing == "none":
            samples = [[index] for index in range(len(lengths))]
        else:
            samples = pack(lengths.tolist(), self._sequence_length)
        at_once = max(1, _TOKENS_OF_A_BATCH // self._sequence_length)
        for some in _batched(samples, at_once):
            order = list(itertools.chain.from_iterable(some))
            slices = [slice(starts[index], ends[index]) for index in order]
            document_ends = _ends([len(sample) for sample in some])
            token_ends = _ends(lengths[order])[document_ends]
            columns = [
                _lists(token_ends, np.concatenate([ids[each] for each in slices])),
                _lists(token_ends, np.concatenate([labels[each] for each in slices])),
                _lists(document_ends, lengths[order]),
            ]
            self._writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
        counts.num_samples += len(samples)
        counts.num_documents += len(lengths)
        counts.num_tokens += len(ids)
        counts.num_supervised += int((labels != IGNORE).sum())
        counts.max_token_id = max(counts.max_token_id, int(ids.max()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()


def windows(documents: Iterable[Documents], most_tokens: int) -> Iterator[Documents]:
    """Deal documents out in their order, to windows of at most so many tokens, the last of which may be short.

    Args:
        documents: None is longer than `most_tokens`.
        most_tokens: Of a window.
    """
    left: Documents | None = None
    for more in documents:
        if left is not None:
            more = Documents(*(np.concatenate(pair) for pair in zip(left, more, strict=True)))
        ends = np.cumsum(more.length)
        first, before = 0, 0
        while len(ends) and ends[-1] - before > most_tokens:
            cut = int(np.searchsorted(ends, before + most_tokens, side="right"))
            yield Documents(*(values[first:cut] for values in more))
            first, before = cut, int(ends[cut - 1])
        left = Documents(*(values[first:] for values in more))
    if left is not None and len(left.row):
        yield left


def _chosen(documents: Iterator[Documents], chosen: Chosen) -> Iterator[Documents]:
    for some in documents:
        kept = chosen(some.row)
        yield Documents(*(values[kept] for values in some))


def _batched(samples: list[list[int]], count: int) -> Iterator[Sequence[list[int]]]:
    return (samples[start : start + count] for start in range(0, len(samples), count))


def _ends(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])


def _lists(ends: np.ndarray, values: np.ndarray) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values, pa.int32()))
