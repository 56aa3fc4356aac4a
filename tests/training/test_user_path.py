"""Paths as users write them, of data and of models."""

from pathlib import Path

import pytest

from tests.training.sources.files import source_of
from training.config import ModelConfig
from training.errors import UserError
from training.model_source import classify
from training.user_path import user_path


@pytest.mark.parametrize("open_it", [source_of, lambda name: classify(ModelConfig(name=name))])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("~nobody-of-this-name/x.jsonl", "begins with the home of nobody who is known here"),
        ("x" * 300 + ".jsonl", r"'xxx.*' cannot be looked at \(File name too long\): correct the name"),
    ],
)
def test_paths_of_which_nothing_can_be_told(open_it, name, says):
    with pytest.raises(UserError, match=says):
        open_it(name)


def test_where_a_path_begins(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert user_path("a/b").absolute() == tmp_path / "a/b"
    assert user_path("a/b", tmp_path / "start") == tmp_path / "start/a/b"
    assert user_path("/a/b", tmp_path) == Path("/a/b")
    assert user_path("~/a", tmp_path) == tmp_path / "home/a"
    assert not user_path("a\0b").exists()
