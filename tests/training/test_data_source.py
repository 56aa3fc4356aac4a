import json

import pytest

from tests.doubles.hub import serve_hub
from training import data_source
from training.config import DataConfig
from training.data_source import open_heldout, open_train
from training.errors import UserError


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with serve_hub(monkeypatch, tmp_path / "cache") as hub:
        yield hub


def rows_of(train, **data):
    return list(open_train(DataConfig(train=str(train), **data)).rows())


def write(tmp_path, content):
    path = tmp_path / "train.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_rows_know_their_file_and_line(tmp_path):
    path = write(tmp_path, '{"text": "a"}\n\n  \n{"text": "é\u2028日"}')
    assert rows_of(path) == [
        (f"{path} line 1", {"text": "a"}),
        (f"{path} line 4", {"text": "é\u2028日"}),
    ]


def test_windows_files_are_read(tmp_path):
    assert [row.values for row in rows_of(write(tmp_path, b'\xef\xbb\xbf{"a": 1}\r\n{"a": 2}\r\n'))] == [
        {"a": 1},
        {"a": 2},
    ]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"a": 1}\n{"a": \n', r"line 2 is not valid JSON \(Expecting value"),
        ("{'a': 1}\n", r"line 1 is not valid JSON"),
        ('{"a": 1} {"a": 2}\n', r"line 1 is not valid JSON \(Extra data at character 10"),
        ('{"a": 1}\n[1]\n', r"line 2 is a JSON array: each line has to be one JSON object"),
        ('"a"\n', r"line 1 is a JSON string"),
        ("null\n", r"line 1 is a JSON null"),
        ('{"a": 1}\n{"a": ' + "9" * 4301 + "}\n", r"line 2 has a number of too many digits"),
        ('{"a": 1}\n{"a": ' + "[" * 100_000 + "]" * 100_000 + "}\n", r"line 2 is nested too deeply"),
        ("true\n", r"line 1 is a JSON boolean"),
        ('{"a": 1}\n{"a": "\xe9"}\n'.encode("latin-1"), r"line 2 is not UTF-8"),
        ('{"a": 1}\n'.encode("utf-16"), r"line 1 is not UTF-8"),
        ("", "is empty: it needs one JSON object a line"),
        ("\n\n", r"is empty \(2 blank lines\)"),
    ],
)
def test_broken_files(tmp_path, content, says):
    path = write(tmp_path, content)
    with pytest.raises(UserError, match=says) as error:
        rows_of(path)
    assert str(path) in str(error.value)


def test_a_missing_file_names_both_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"data\.train is 'data/none\.jsonl', which does not exist") as error:
        open_train(DataConfig(train="data/none.jsonl"))
    assert str(tmp_path) in str(error.value)
    assert str(data_source._PROJECT) in str(error.value)


def test_a_missing_absolute_path_is_looked_for_once(tmp_path):
    with pytest.raises(UserError, match=r"none\.jsonl', which does not exist: set it to a \.jsonl file"):
        open_train(DataConfig(train=str(tmp_path / "none.jsonl")))


def test_relative_paths_start_at_the_working_folder_and_then_at_the_project(tmp_path, monkeypatch):
    work, project = tmp_path / "work", tmp_path / "project"
    for folder in (work, project):
        folder.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(data_source, "_PROJECT", project)
    (project / "rows.jsonl").write_text('{"from": "project"}')
    assert rows_of("rows.jsonl")[0].values == {"from": "project"}
    (work / "rows.jsonl").write_text('{"from": "work"}')
    assert rows_of("rows.jsonl") == [("rows.jsonl line 1", {"from": "work"})]


@pytest.mark.parametrize("name", ["t.json", "t.csv", "t.parquet", "t.jsonl.gz", "folder/t.txt"])
@pytest.mark.parametrize("exists", [True, False])
def test_other_files_are_not_read(tmp_path, monkeypatch, name, exists):
    monkeypatch.chdir(tmp_path)
    if exists:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(UserError, match="a kind of file that is not read" if exists else "does not exist"):
        open_train(DataConfig(train=name))


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(UserError, match=r"is a folder: set it to a \.jsonl file"):
        open_train(DataConfig(train=str(tmp_path)))


def test_heldout_has_to_be_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_heldout(DataConfig(train="a.jsonl")) is None
    with pytest.raises(UserError, match=r"data\.heldout is 'acme/chats', which does not exist"):
        open_heldout(DataConfig(train="a.jsonl", heldout="acme/chats"))


def test_a_revision_needs_a_hub_data_set(tmp_path):
    with pytest.raises(UserError, match=r"set data\.revision to null"):
        open_train(DataConfig(train=str(write(tmp_path, "{}")), revision="main"))


def test_a_hub_data_set(hub):
    lines = [{"text": f"row {n}"} for n in range(3)]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    hub.add("datasets", "acme/texts", {"train.jsonl": content}, commit="d" * 40)

    source = open_train(DataConfig(train="acme/texts"))

    assert (source.revision, source.content) == ("d" * 40, f"acme/texts@{'d' * 40}/train")
    assert [row.values for row in source.rows()] == lines
    assert next(source.rows()).origin == "acme/texts split train row 1"


def test_a_hub_data_set_at_a_commit_is_named_without_network(hub):
    source = open_train(DataConfig(train="acme/texts", revision="d" * 40))
    assert source.content == f"acme/texts@{'d' * 40}/train"
    assert hub.requests == []


def test_a_hub_data_set_without_the_split(hub):
    hub.add("datasets", "acme/texts", {"train.jsonl": '{"text": "a"}\n'})
    with pytest.raises(UserError, match=r"the split 'nope' of .* cannot be loaded: .*'train'.*data\.train_split"):
        rows_of("acme/texts", train_split="nope")


def test_a_hub_data_set_without_data(hub):
    hub.add("datasets", "acme/script", {"script.py": "raise SystemExit('was run')"})
    with pytest.raises(UserError, match="'acme/script' cannot be loaded"):
        rows_of("acme/script")


def test_a_hub_data_set_that_is_not_there(hub):
    with pytest.raises(UserError, match="the hub has no data set 'acme/nope'"):
        open_train(DataConfig(train="acme/nope"))


def test_a_gated_hub_data_set(hub):
    hub.add("datasets", "acme/gated", {}, gated=True)
    with pytest.raises(UserError, match=r"accept its licence at .*/datasets/acme/gated"):
        open_train(DataConfig(train="acme/gated"))


@pytest.mark.parametrize("revision", [None, "d" * 40])
def test_no_network(hub, revision):
    hub.close()
    with pytest.raises(UserError, match=r"cannot be reached .*set data\.train to a \.jsonl file"):
        rows_of("acme/texts", revision=revision)
