"""Writing packed samples as Arrow."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from components.tokenize_dataset.documents import Document
from components.tokenize_dataset.pack import pack
from training.data import IGNORE

_TOKENS_AT_ONCE = 4_000_000
"""Tokens in a record batch, about."""

_SCHEMA = pa.schema([(name, pa.list_(pa.int32())) for name in ("input_ids", "labels", "lengths")])


@dataclass(frozen=True)
class SampleCounts:
    """What a file of packed samples holds."""

    num_samples: int
    num_tokens: int
    num_supervised: int
    max_token_id: int


def write_samples(
    path: Path, documents: Sequence[Document], sequence_length: int, packing: str = "best_fit"
) -> SampleCounts:
    """Pack documents and write them as an Arrow IPC file.

    A row is one sample: input_ids and labels (already shifted, see `Document`) of its documents one after
    another, and their lengths, which say where positions start at 0 again.

    Args:
        path: File to write.
        documents: Not empty.
        sequence_length: Most tokens in a sample.
        packing: `data.packing`.
    """
    if packing == "none":
        samples = [[index] for index in range(len(documents))]
    else:
        samples = pack([len(document.input_ids) for document in documents], sequence_length)
    at_once = max(1, _TOKENS_AT_ONCE // sequence_length)
    with pa.ipc.new_file(path, _SCHEMA) as writer:
        for start in range(0, len(samples), at_once):
            writer.write_batch(_record_batch(documents, samples[start : start + at_once]))
    return SampleCounts(
        num_samples=len(samples),
        num_tokens=sum(len(document.input_ids) for document in documents),
        num_supervised=sum(int((document.labels != IGNORE).sum()) for document in documents),
        max_token_id=max((int(document.input_ids.max()) for document in documents), default=-1),
    )


def fingerprint_documents(documents: Sequence[Document]) -> str:
    """Name what a loss over these documents is measured on: their tokens and labels, however they are packed."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(len(document.input_ids).to_bytes(8, "big"))
        digest.update(document.input_ids.tobytes())
        digest.update(document.labels.tobytes())
    return digest.hexdigest()[:16]


def _record_batch(documents: Sequence[Document], samples: list[list[int]]) -> pa.RecordBatch:
    order = list(itertools.chain.from_iterable(samples))
    lengths = np.asarray([len(documents[index].input_ids) for index in order], np.int32)
    document_ends = _ends([len(sample) for sample in samples])
    token_ends = np.concatenate([[0], np.cumsum(lengths)])[document_ends]
    columns = [
        _lists(token_ends, np.concatenate([documents[index].input_ids for index in order])),
        _lists(token_ends, np.concatenate([documents[index].labels for index in order])),
        _lists(document_ends, lengths),
    ]
    return pa.record_batch(columns, schema=_SCHEMA)


def _ends(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])


def _lists(ends: np.ndarray, values: np.ndarray) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values, pa.int32()))
