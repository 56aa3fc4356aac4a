"""Which files of a folder are read: splits, links, and what `datasets` saved."""

import json
import os
from pathlib import Path

import pytest

from tests.training.sources.files import read, source_of, values, write
from training.config import DataConfig
from training.errors import UserError
from training.sources.open import open_heldout, open_train
from training.sources.split_names import split_of


def folder_of(tmp_path, *names):
    for name in names:
        write(tmp_path / "rows", name, json.dumps({"from": name}))
    return str(tmp_path / "rows")


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train-00000-of-00002.parquet", "train"),
        ("data/train_sft-00000-of-00002.parquet", "train_sft"),
        ("main/dev-00000-of-00001-0f8d.parquet", "dev"),
        ("train.jsonl", "train"),
        ("Training_2.csv.gz", "train"),
        ("gsm8k.test.jsonl", "test"),
        ("eval-1.jsonl", "test"),
        ("valid.txt", "validation"),
        ("dev/part-0.jsonl", "validation"),
        ("train/tests.jsonl", "train"),
        ("train/eval.jsonl", "train"),
        ("tests.jsonl", None),
        ("constrained.jsonl", None),
        ("part-00000.jsonl", None),
    ],
)
def test_a_split_is_told_by_a_name(path, split):
    assert split_of(path) == split


@pytest.mark.parametrize(
    "names",
    [
        ("train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "test-00000-of-00001.jsonl"),
        ("train.jsonl", "train_2.jsonl", "test.jsonl"),
        ("train/a.jsonl", "train/b.jsonl", "test/a.jsonl"),
        ("train-1.jsonl", "train-2.jsonl", "test.csv"),
    ],
)
def test_of_a_folder_with_several_splits_one_is_read(tmp_path, names):
    data = DataConfig(train=folder_of(tmp_path, *names), heldout=str(tmp_path / "rows"))
    (train,), (heldout,) = open_train(data), open_heldout(data)
    root = f"{tmp_path}/rows/"
    assert [file.name.removeprefix(root) for file in train.files] == [*names[:2]]
    assert [file.name.removeprefix(root) for file in heldout.files] == [names[2]]
    assert (train.split, heldout.split) == ("train", "test")


def test_other_splits_are_read_by_their_names_and_all_by_a_glob(tmp_path):
    folder = folder_of(tmp_path, "train_sft-00000-of-00001.jsonl", "train_gen-00000-of-00001.jsonl")
    assert values(folder, train_split="train_gen") == [{"from": "train_gen-00000-of-00001.jsonl"}]
    with pytest.raises(UserError, match=r"no split 'train': choose one of train_gen, train_sft, or .* a glob"):
        read(folder)
    assert len(read(f"{folder}/*.jsonl")) == 2


def test_a_file_of_no_split_beside_several_is_not_passed_over(tmp_path):
    folder = folder_of(tmp_path, "train.jsonl", "test.jsonl", "more.jsonl")
    with pytest.raises(UserError, match=r"splits test, train, and others beside them \(more\.jsonl\)"):
        read(folder)


@pytest.mark.parametrize("names", [("test.jsonl",), ("train.jsonl", "more.jsonl"), ("a.jsonl", "b.jsonl")])
def test_a_folder_without_several_splits_is_read_whole(tmp_path, names):
    folder = folder_of(tmp_path, *names)
    assert len(read(folder)) == len(names)
    assert source_of(folder).split is None


@pytest.mark.parametrize("field", ["train", "heldout"])
@pytest.mark.parametrize("name", ["a.jsonl", "", "*.jsonl"])
def test_a_split_of_what_has_none_is_refused(tmp_path, field, name):
    place = f"{folder_of(tmp_path, 'a.jsonl', 'b.jsonl')}/{name}"
    open_source = open_train if field == "train" else open_heldout
    own = DataConfig(**{"train": "unused", field: [{"source": place, "split": "train"}]})
    with pytest.raises(
        UserError, match=r"the split of '.*' is 'train', but it is neither .*: leave the split out"
    ):
        open_source(own)
    of_all = DataConfig(**{"train": "unused", field: place, f"{field}_split": "nope"})
    with pytest.raises(UserError, match=rf"{field}_split is 'nope', but data\.{field} is neither a hub"):
        open_source(of_all)


def test_a_split_of_one_of_several_sources_is_of_effect(tmp_path):
    write(tmp_path, "more.jsonl", "{}")
    folder = folder_of(tmp_path, "train_a-00000-of-00001.jsonl", "train_b-00000-of-00001.jsonl")
    sources = open_train(DataConfig(train=[str(tmp_path / "more.jsonl"), folder], train_split="train_a"))
    assert [source.split for source in sources] == [None, "train_a"]


# Links


def test_links_to_files_and_folders_are_followed_once(tmp_path):
    folder = folder_of(tmp_path, "a.jsonl")
    elsewhere = write(tmp_path / "elsewhere", "x.jsonl", '{"from": "x"}')
    Path(folder, "more").symlink_to(elsewhere.parent)
    Path(folder, "more/loop").symlink_to(folder)
    Path(folder, "link.jsonl").symlink_to(elsewhere)
    assert [row["from"] for row in values(folder)] == ["a.jsonl", "x", "x"]


@pytest.mark.parametrize("name", ["", "/*.jsonl"])
def test_a_link_that_leads_nowhere_is_told(tmp_path, name):
    folder = folder_of(tmp_path, "a.jsonl")
    Path(folder, "b.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=r"rows/b\.jsonl' is a link that leads nowhere"):
        read(folder + name)


def test_a_folder_that_may_not_be_read_is_not_passed_over(tmp_path, monkeypatch):
    folder = folder_of(tmp_path, "a.jsonl", "b/b.jsonl")
    scan = os.scandir

    def refuse(place):
        if str(place).endswith("/b"):
            raise PermissionError(13, "Permission denied", str(place))
        return scan(place)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=r"/b' cannot be looked at \(Permission denied\)"):
        read(folder)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "t.jsonl")
    with pytest.raises(UserError, match="is neither a file nor a folder"):
        read(tmp_path / "t.jsonl")


# What datasets saved


@pytest.mark.parametrize("content", ["{}", "[1]", "not JSON", '{"_data_files": 1}'])
def test_a_file_that_only_has_the_name_of_one_of_datasets_is_data(tmp_path, content):
    for name in ("state.json", "dataset_dict.json"):
        write(tmp_path / name, name, content)
        assert [file.name for file in source_of(tmp_path / name).files] == [str(tmp_path / name / name)]
