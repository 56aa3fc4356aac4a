import json
import math
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from components.tokenize_dataset.documents import Document
from components.tokenize_dataset.pack import pack
from components.tokenize_dataset.write import write_samples

lengths_and_capacity = st.integers(1, 60).flatmap(
    lambda capacity: st.tuples(st.lists(st.integers(1, capacity), max_size=80), st.just(capacity))
)


@given(lengths_and_capacity)
def test_every_document_is_in_one_sample_whole(case):
    lengths, capacity = case
    samples = pack(lengths, capacity)
    assert sorted(index for sample in samples for index in sample) == list(range(len(lengths)))


@given(lengths_and_capacity)
def test_no_sample_is_over_full_or_empty(case):
    lengths, capacity = case
    assert all(0 < sum(lengths[index] for index in sample) <= capacity for sample in pack(lengths, capacity))


@given(lengths_and_capacity)
def test_it_is_deterministic(case):
    assert pack(*case) == pack(*case)


@given(lengths_and_capacity)
def test_it_needs_few_samples(case):
    lengths, capacity = case
    # The total is a lower bound of the best packing, not the best itself, so the factor is that of any
    # packing that opens no sample while a document fits into another: all but one are more than half full.
    assert len(pack(lengths, capacity)) <= max(math.ceil(2 * sum(lengths) / capacity), 1 if lengths else 0)


def test_the_best_fit_is_chosen():
    assert pack([6, 5, 4, 3, 2], 10) == [[0, 2], [1, 3, 4]]
    assert pack([7, 8, 2, 3], 10) == [[1, 2], [0, 3]]
    assert pack([], 10) == []


def test_many_documents_are_packed_fast_and_densely():
    lengths = np.random.default_rng(0).lognormal(5, 0.8, 100_000).astype(int).clip(1, 2048).tolist()
    samples = pack(lengths, 2048)
    assert sum(lengths) / (len(samples) * 2048) > 0.999


@settings(deadline=None)  # the first example opens Arrow
@given(st.lists(st.integers(1, 12), min_size=1, max_size=30))
def test_what_is_written_is_what_is_read(lengths):
    documents = []
    for number, length in enumerate(lengths):
        ids = np.arange(length, dtype=np.int32) + 100 * number
        documents.append(Document(ids, np.where(ids % 3 == 0, -100, ids + 1).astype(np.int32)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.arrow"
        counts = write_samples(path, documents, 12)
        table = pa.ipc.open_file(str(path)).read_all()

    assert [field.type for field in table.schema] == [pa.list_(pa.int32())] * 3
    assert table.column_names == ["input_ids", "labels", "lengths"]
    found = []
    for row in table.to_pylist():
        assert sum(row["lengths"]) == len(row["input_ids"]) == len(row["labels"]) <= 12
        start = 0
        for length in row["lengths"]:
            found.append((row["input_ids"][start : start + length], row["labels"][start : start + length]))
            start += length
    assert sorted(map(json.dumps, found)) == sorted(
        json.dumps((document.input_ids.tolist(), document.labels.tolist())) for document in documents
    )
    assert counts.num_samples == table.num_rows
    assert counts.num_tokens == sum(lengths)
    assert counts.num_supervised == sum(label != -100 for _, labels in found for label in labels)


def test_many_samples_are_written_in_several_batches(tmp_path, monkeypatch):
    monkeypatch.setattr("components.tokenize_dataset.write._TOKENS_AT_ONCE", 20)
    documents = [Document(np.full(n, n, np.int32), np.full(n, -100, np.int32)) for n in range(1, 11)]
    write_samples(tmp_path / "samples.arrow", documents, 10)
    reader = pa.ipc.open_file(str(tmp_path / "samples.arrow"))
    assert reader.num_record_batches == 3
    assert sorted(n for row in reader.read_all().to_pylist() for n in row["lengths"]) == list(range(1, 11))
