import hashlib
import itertools
import json
import math
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.tokenize_dataset import write
from components.tokenize_dataset.pack import pack
from components.tokenize_dataset.spool import Documents, as_ids_and_labels
from components.tokenize_dataset.write import SampleWriter, windows
from tests.components.tokenize_dataset.spooling import encoded, spool_of

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


def documents_of(texts, lengths):
    """What a spool of these rows holds: ids and labels of each document."""
    rows = encoded(texts, lengths)
    ends = list(itertools.accumulate(lengths))
    parts = [rows.tokens[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    return [tuple(part.tolist() for part in as_ids_and_labels(tokens)) for tokens in parts]


def documents_in(path, capacity):
    """The documents of a file of samples, each of which is looked at."""
    found = []
    for row in pa.ipc.open_file(str(path)).read_all().to_pylist():
        assert sum(row["lengths"]) == len(row["input_ids"]) == len(row["labels"]) <= capacity
        start = 0
        for length in row["lengths"]:
            found.append((row["input_ids"][start : start + length], row["labels"][start : start + length]))
            start += length
    return found


def everything(rows):
    return np.ones(len(rows), bool)


@settings(deadline=None)  # the first example opens Arrow
@given(
    st.lists(st.integers(2, 12), min_size=1, max_size=30),
    st.integers(1, 40),
    st.sampled_from(["best_fit", "none"]),
)
def test_what_is_written_is_what_was_spooled(lengths, tokens_of_a_window, packing):
    texts = [f"text {number}" for number in range(len(lengths))]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(write, "_TOKENS_OF_A_WINDOW", tokens_of_a_window)
        monkeypatch.setattr(write, "_SAMPLES_OF_A_WINDOW", 1)
        monkeypatch.setattr(write, "_TOKENS_OF_A_BATCH", 20)
        path = Path(folder) / "samples.arrow"
        spool = spool_of(Path(folder) / "spool", ["first"], texts, lengths=[[5], lengths])
        digest = hashlib.sha256()
        with SampleWriter(path, spool, 12, packing, digest) as writer:
            counts = writer.write(1, everything)
        table = pa.ipc.open_file(str(path)).read_all()
        found = documents_in(path, 12)
    wanted = documents_of(texts, lengths)
    assert [field.type for field in table.schema] == [pa.list_(pa.int32())] * 3
    assert table.column_names == ["input_ids", "labels", "lengths"]
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, wanted))
    assert counts.num_samples == table.num_rows
    assert counts.num_documents == len(lengths)
    assert counts.num_tokens == sum(lengths)
    assert counts.num_supervised == sum(label != -100 for _, labels in found for label in labels)
    assert counts.max_token_id == max(token for ids, _ in found for token in ids)
    expected = hashlib.sha256()
    for ids, labels in wanted:
        expected.update(len(ids).to_bytes(8, "big"))
        expected.update(np.asarray(ids, np.int32).tobytes() + np.asarray(labels, np.int32).tobytes())
    assert digest.digest() == expected.digest()


def test_rows_are_chosen_for_each_pass_and_sources_share_no_sample(tmp_path):
    spool = spool_of(tmp_path / "spool", ["a", "b", "c"], ["d", "e"])
    with SampleWriter(tmp_path / "samples.arrow", spool, 16, "best_fit") as writer:
        one = writer.write(0, lambda rows: rows != 1, lambda rows: rows == 2)
        other = writer.write(1, everything)
    a, _, c, d, e = documents_of("abcde", [4] * 5)
    found = documents_in(tmp_path / "samples.arrow", 16)
    assert (one.num_samples, other.num_samples) == (1, 1)
    assert sorted(found[:3]) == sorted([a, c, c])
    assert sorted(found[3:]) == sorted([d, e])


def test_nothing_chosen_is_an_empty_file(tmp_path):
    spool = spool_of(tmp_path / "spool", ["a", "b", "c"])
    with SampleWriter(tmp_path / "samples.arrow", spool, 16, "best_fit") as writer:
        assert writer.write(0, lambda rows: rows < 0).num_samples == 0
    assert documents_in(tmp_path / "samples.arrow", 16) == []


@given(st.lists(st.lists(st.integers(1, 9), max_size=8), max_size=8), st.integers(9, 40))
def test_windows_hold_all_documents_in_their_order_and_only_the_last_is_short(parts, most_tokens):
    numbers = itertools.count()
    given_parts = []
    for lengths in parts:
        row = np.array([next(numbers) for _ in lengths], np.int64)
        given_parts.append(Documents(row, row * 10, np.array(lengths, np.int64)))
    found = list(windows(iter(given_parts), most_tokens))
    assert [int(row) for window in found for row in window.row] == list(range(next(numbers)))
    sizes = [int(window.length.sum()) for window in found]
    assert all(0 < size <= most_tokens for size in sizes)
    assert all(size > most_tokens - 9 for size in sizes[:-1])


def test_windows_cost_little_fill():
    lengths = np.random.default_rng(0).lognormal(5, 0.8, 60_000).astype(np.int64).clip(1, 1024)
    documents = Documents(np.arange(len(lengths)), np.cumsum(lengths) - lengths, lengths)
    of_windows = sum(len(pack(window.length.tolist(), 1024)) for window in windows([documents], 2_000_000))
    assert of_windows <= 1.002 * len(pack(lengths.tolist(), 1024))
