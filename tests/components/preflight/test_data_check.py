"""What preflight finds out about sources of data before anything is downloaded, and how it pins them."""

import json

import pytest

from components.preflight.prepare import prepare
from tests.components.preflight.test_preflight import model, new_step, problems, write_recipe  # noqa: F401
from tests.doubles.hub import serve_hub

OLD, NEW = "a" * 40, "b" * 40
ROW = json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}) + "\n"


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "train.jsonl", ROW)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with serve_hub(monkeypatch, tmp_path / "cache") as hub:
        for name in ("acme/chats", "acme/texts"):
            hub.add("datasets", name, {"train.jsonl": ROW, "test.jsonl": ROW}, commit=OLD)
        yield hub


@pytest.fixture
def prepared(tmp_path, write_recipe):  # noqa: F811
    def run(name="a-run", **data):
        step = new_step(tmp_path, name)
        page = prepare(step, write_recipe(data=data), "", {}).page
        return step.folder.config().data, page

    return run


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


# First rows


def test_a_first_row_that_cannot_be_parsed_is_told(prepared, tmp_path):
    path = write(tmp_path / "bad.jsonl", ROW + "{'no': json}\n")
    for given in (
        {"train": str(path)},
        {"heldout": str(path)},
        {"train": [str(tmp_path / "train.jsonl"), str(path)]},
    ):
        (problem,) = problems(lambda given=given: prepared(**given))
        assert problem.startswith(f"{path} line 2 is not valid JSON")


def test_as_many_malformed_rows_as_may_be_do_not_end_the_run(prepared, tmp_path):
    path = write(tmp_path / "bad.jsonl", "x\n" + ROW + "y\n")
    prepared("first", train=str(path), max_malformed_rows=2)
    (problem,) = problems(lambda: prepared("second", train=str(path), max_malformed_rows=1))
    assert f"{path} line 3" in problem


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("e.jsonl", "", "e.jsonl is empty"),
        ("e.parquet", "no table", "e.parquet is broken or not whole"),
        ("e.csv.gz", "not compressed", "e.csv.gz is broken or not whole"),
        ("e.csv", "a,a\n1,2\n", "names the column 'a' twice"),
        ("e/a.csv", "a\n1\n", None),
    ],
)
def test_files_that_cannot_be_read_are_told(prepared, tmp_path, name, content, says):
    path = write(tmp_path / name, content)
    if says is None:
        write(tmp_path / "e" / "b.txt", "x")
        path, says = path.parent, "holds files of several kinds"
    (problem,) = problems(lambda: prepared(train=str(path)))
    assert says in problem


def test_the_page_says_what_a_folder_holds(prepared, tmp_path):
    for name in ("a", "b"):
        write(tmp_path / "rows" / f"{name}.jsonl", ROW)
    _, page = prepared(train=[{"source": str(tmp_path / "rows"), "name": "mine"}, str(tmp_path / "train.jsonl")])
    assert f"| data | mine (2 files, 0.00 GB) + {tmp_path}/train.jsonl, held out: a hashed share |" in page


def test_the_page_says_which_split_of_a_folder_is_taken(prepared, tmp_path):
    for name in ("train", "test"):
        write(tmp_path / "rows" / f"{name}.jsonl", ROW)
    _, page = prepared(train=[{"source": str(tmp_path / "rows"), "name": "mine"}])
    assert "| data | mine (1 file of the split 'train', 0.00 GB), held out: a hashed share |" in page


def test_data_in_s3_is_looked_at(prepared, s3_server, monkeypatch):
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    bucket = s3_server.make_bucket("preflight")
    s3_server.put(bucket, {"good.jsonl": ROW.encode(), "bad.jsonl": b"x\n"})
    (missing,) = problems(lambda: prepared(train=f"s3://{bucket}/gone.jsonl"))
    assert f"data.train is 's3://{bucket}/gone.jsonl', which does not exist" in missing
    (bad,) = problems(lambda: prepared(train=f"s3://{bucket}/bad.jsonl"))
    assert bad.startswith(f"s3://{bucket}/bad.jsonl line 1 is not valid JSON")
    _, page = prepared(train=f"s3://{bucket}/good.jsonl")
    assert f"| data | s3://{bucket}/good.jsonl, held out" in page


def test_the_first_rows_of_a_hub_data_set_that_is_streamed_are_read(prepared, hub):
    hub.add("datasets", "acme/broken", {"train.parquet": b"PAR1 and no more"})
    (problem,) = problems(lambda: prepared(train="acme/broken", streaming=True))
    assert "'acme/broken' cannot be loaded" in problem
    assert not [path for path in hub.downloads() if "chats" in path]


# Pins


def test_one_hub_data_set_is_pinned_by_the_revision(prepared, hub):
    data, _ = prepared(train="acme/chats", heldout="acme/chats")
    assert (data.train, data.heldout, data.revision) == ("acme/chats", "acme/chats", OLD)
    data, _ = prepared("second", train="acme/chats", heldout=data.heldout)
    assert data.revision == OLD


def test_several_hub_data_sets_are_pinned_each(prepared, hub, data):
    hub.repos["datasets", "acme/texts"].commit = NEW
    pinned, _ = prepared(
        train=["acme/chats", {"source": str(data), "name": "mine"}, {"source": "acme/texts", "weight": None}],
        heldout="acme/texts",
        revision="main",
    )
    assert [(source.source, source.revision) for source in pinned.train] == [
        ("acme/chats", OLD),
        (str(data), None),
        ("acme/texts", NEW),
    ]
    assert [(source.source, source.revision, source.split) for source in pinned.heldout_sources] == [
        ("acme/texts", NEW, "test")
    ]
    assert pinned.revision is None


def test_a_source_with_a_revision_of_its_own_is_pinned_in_its_place(prepared, hub):
    pinned, _ = prepared(train=[{"source": "acme/chats", "revision": "main"}])
    assert [source.revision for source in pinned.train] == [OLD]


@pytest.mark.parametrize("train", ["acme/chats", ["acme/chats", "acme/texts"]])
def test_a_run_that_goes_on_keeps_its_pins_when_a_branch_has_moved(prepared, hub, train):
    first, _ = prepared(train=train)
    hub.repos["datasets", "acme/chats"].commit = NEW
    again, _ = prepared(train=train)
    assert again == first
    other, _ = prepared("another-run", train=train)
    assert {source.revision for source in other.train_sources} >= {NEW}


def test_a_run_that_goes_on_with_other_data_is_refused(prepared, hub):
    prepared(train=["acme/chats", "acme/texts"])
    (problem,) = problems(lambda: prepared(train=["acme/texts", "acme/chats"]))
    assert "exists with another configuration (data.train" in problem


def test_a_model_in_s3_is_pinned_to_its_etags(tmp_path, write_recipe, model, s3_server, monkeypatch):  # noqa: F811
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bucket = s3_server.make_bucket("preflight-models")
    s3_server.put(bucket, {f"tiny/{path.name}": path.read_bytes() for path in model.iterdir()})
    recipe = write_recipe(model={"name": f"s3://{bucket}/tiny"})
    step = new_step(tmp_path)
    page = prepare(step, recipe, "", {}).page
    revision = step.folder.config().model.revision
    assert revision.startswith("etags-")
    assert f"| model | s3://{bucket}/tiny at {revision} |" in page
    s3_server.put(bucket, {"tiny/generation_config.json": b"{}"})
    prepare(new_step(tmp_path), recipe, "", {})
    assert new_step(tmp_path).folder.config().model.revision == revision
