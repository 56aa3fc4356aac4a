"""The sides of tokenizing, on a corpus of a moment."""

import json
import subprocess
import sys

import pytest

from benchmarks import tokenize, tokenize_memory
from benchmarks.corpus import write_corpus
from benchmarks.options import Options
from tests.doubles.models import tiny_tokenizer


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    tiny_tokenizer().save_pretrained(folder / "tokenizer")
    return folder


@pytest.mark.parametrize("kind", ["text", "chat"])
def test_a_corpus_has_rows_of_its_kind_all_different(store, kind):
    path = store / f"{kind}.jsonl"
    write_corpus(path, kind, 200_000)
    rows = path.read_text().splitlines()
    assert len(rows) == len(set(rows)) > 50
    assert 200_000 <= path.stat().st_size < 250_000
    for row in map(json.loads, rows):
        if kind == "chat":
            roles = [message["role"] for message in row["messages"]]
            assert roles == ["user", "assistant"] * (len(roles) // 2)
        else:
            assert len(row["text"]) >= 2000


@pytest.mark.slow
def test_the_three_sides_are_held_against_each_other(store, monkeypatch):
    pytest.importorskip("trl", reason="trl is not installed: pip install .[bench]")
    monkeypatch.setattr(tokenize, "_BYTES", 50_000)
    monkeypatch.setattr(tokenize, "_KINDS", ("chat",))
    figures = tokenize.measure(Options(store, repetitions=1))
    assert [figure.name for figure in figures] == [
        "tokenize.chat.tokens_per_s",
        "tokenize.chat.speed_over_datasets_map",
        "tokenize.chat.share_of_the_tokenizers_rate",
    ]
    assert all(figure.value > 0 for figure in figures)


def test_memory_is_compared_and_that_of_children_counts(store, monkeypatch):
    peaks = {10: 100, 20: 105}
    monkeypatch.setattr(tokenize_memory, "_peak", lambda folder, num_bytes: peaks[num_bytes] << 20)
    monkeypatch.setattr(tokenize_memory, "_SMALL", 10)
    monkeypatch.setattr(tokenize_memory, "_LARGE", 20)
    assert [figure.value for figure in tokenize_memory.measure(Options(store))] == [100, 105, 1.05]

    holds = "held = b'x' * (1 << 26); print(1); input()"
    waits = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {holds!r}])"
    with subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert tokenize_memory.resident(process.pid) > 1 << 26
        process.stdin.close()
