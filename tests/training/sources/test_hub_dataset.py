"""Data sets of the hub, from a stand-in for it."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.doubles.hub import serve_hub
from tests.training.sources.files import read, source_of, values
from training.config import DataConfig
from training.errors import UserError
from training.sources.open import open_heldout, open_train

COMMIT, TOKEN = "d" * 40, "hf_secretsecretsecret"
ROWS = [{"text": f"row {n}"} for n in range(3)]


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with serve_hub(monkeypatch, tmp_path / "cache") as hub:
        yield hub


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_hub_data_set(hub, streaming):
    hub.add("datasets", "acme/texts", {"train.jsonl": jsonl(ROWS)}, commit=COMMIT)
    source = source_of("acme/texts", streaming=streaming)
    assert (source.name, source.revision, source.content) == ("acme/texts", COMMIT, f"acme/texts@{COMMIT}//train")
    assert values("acme/texts", streaming=streaming) == ROWS
    assert read("acme/texts", streaming=streaming)[0].origin == "acme/texts split train row 1"


def test_streaming_makes_no_copy(hub, tmp_path):
    rows = [{"text": f"{n} " * 50} for n in range(5000)]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer, row_group_size=500)
    hub.add("datasets", "acme/texts", {"train.parquet": buffer.getvalue()}, commit=COMMIT)
    assert values("acme/texts", streaming=True) == rows
    kept = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert kept < len(buffer.getvalue()) / 2
    assert values("acme/texts") == rows
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file()) > len(
        buffer.getvalue()
    )


@pytest.mark.parametrize("streaming", [False, True])
def test_splits_and_subsets(hub, streaming):
    card = """---
configs:
- config_name: small
  data_files:
  - {split: train, path: small/train.jsonl}
  - {split: test, path: small/test.jsonl}
- config_name: large
  default: true
  data_files:
  - {split: train, path: large.jsonl}
---
"""
    files = {"small/train.jsonl": ROWS[:1], "small/test.jsonl": ROWS[1:2], "large.jsonl": ROWS}
    content = {name: jsonl(rows) for name, rows in files.items()}
    hub.add("datasets", "acme/texts", {"README.md": card, **content}, commit=COMMIT)
    assert values("acme/texts", streaming=streaming) == ROWS
    assert values("acme/texts", subset="small", streaming=streaming) == ROWS[:1]
    data = DataConfig(train=[{"source": "acme/texts", "subset": "small"}], heldout="acme/texts", subset="small")
    (train,), (heldout,) = open_train(data), open_heldout(data)
    assert (train.content, heldout.content) == tuple(
        f"acme/texts@{COMMIT}/small/{split}" for split in ("train", "test")
    )
    assert [row.values for block in heldout.blocks() for row in block.rows()] == ROWS[1:2]
    with pytest.raises(UserError, match=r"of the subset 'huge' of the data set 'acme/texts' cannot be loaded"):
        read("acme/texts", subset="huge", streaming=streaming)


def test_a_hub_data_set_at_a_commit_is_named_without_network(hub):
    assert source_of("acme/texts", revision=COMMIT).content == f"acme/texts@{COMMIT}//train"
    assert hub.requests == []


def test_a_file_that_is_not_there_is_no_hub_data_set(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("rows/train.csv", "rows/train.parquet", "train.txt.gz"):
        with pytest.raises(UserError, match="does not exist"):
            source_of(name)
    assert hub.requests == []


def test_a_folder_comes_before_a_hub_data_set_of_its_name(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acme" / "texts").mkdir(parents=True)
    (tmp_path / "acme" / "texts" / "a.txt").write_text("here")
    assert values("acme/texts") == [{"text": "here"}]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_hub_data_set_without_the_split(hub, streaming):
    hub.add("datasets", "acme/texts", {"train.jsonl": '{"text": "a"}\n'})
    with pytest.raises(UserError, match=r"the split 'nope' of .* cannot be loaded: .*data\.train_split"):
        read("acme/texts", train_split="nope", streaming=streaming)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_hub_data_set_without_data(hub, streaming):
    hub.add("datasets", "acme/script", {"script.py": "raise SystemExit('was run')"})
    with pytest.raises(UserError, match="'acme/script' cannot be loaded"):
        read("acme/script", streaming=streaming)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_hub_data_set_that_is_broken(hub, streaming):
    hub.add("datasets", "acme/broken", {"train.parquet": b"PAR1 and no more"})
    with pytest.raises(UserError, match="'acme/broken' cannot be loaded"):
        read("acme/broken", streaming=streaming)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_split_without_rows(hub, streaming):
    hub.add("datasets", "acme/empty", {"train.csv": "text\n"})
    with pytest.raises(UserError, match=r"'acme/empty' (has no rows|cannot be loaded: .* no data)"):
        read("acme/empty", streaming=streaming)


def test_a_hub_data_set_that_is_not_there(hub):
    with pytest.raises(UserError, match="the hub has no data set 'acme/nope'"):
        source_of("acme/nope")


def test_a_gated_hub_data_set_needs_a_token(hub, monkeypatch):
    hub.add("datasets", "acme/gated", {"train.jsonl": jsonl(ROWS)}, gated=True, token=TOKEN)
    with pytest.raises(UserError, match=r"accept its licence at .*/datasets/acme/gated"):
        source_of("acme/gated")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert values("acme/gated") == ROWS


@pytest.mark.parametrize("revision", [None, COMMIT])
@pytest.mark.parametrize("streaming", [False, True])
def test_no_network(hub, revision, streaming):
    hub.close()
    with pytest.raises(UserError, match=r"cannot be reached .*set data\.train to a \.jsonl file"):
        read("acme/texts", revision=revision, streaming=streaming)
