"""The call beneath `shardline run`, as a notebook makes it: a process that goes on after the run."""

import signal

import pytest
import yaml

from pipelines.run_here import RunUnfinished, run_here
from training.errors import UserError

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def recipe(tmp_path):
    """Of a model that is not there, so that the first step fails."""
    (tmp_path / "train.jsonl").write_text('{"messages": []}\n')
    file = tmp_path / "broken.yaml"
    content = {"model": {"name": str(tmp_path / "model")}, "data": {"train": str(tmp_path / "train.jsonl")}}
    file.write_text(yaml.safe_dump(content))
    return str(file)


def test_a_step_that_fails_raises_and_leaves_the_process_as_it_was(recipe, tmp_path, capsys):
    before = [signal.getsignal(number) for number in NUMBERS]
    with pytest.raises(RunUnfinished, match="the run mine failed") as raised:
        run_here(recipe, store=tmp_path / "store", name="mine")
    assert raised.value.code == 1
    assert "Starting the run mine in" in (told := capsys.readouterr().out) and "✗ preflight" in told
    assert [signal.getsignal(number) for number in NUMBERS] == before
    # Nothing holds the run any more.
    with pytest.raises(RunUnfinished):
        run_here(recipe, store=tmp_path / "store", name="mine")
    assert "Resuming the run mine in" in capsys.readouterr().out


def test_a_mistake_is_told_before_anything_begins(recipe, tmp_path):
    with pytest.raises(UserError, match=r"training\.epoch"):
        run_here(recipe, ["training.epoch=2"], store=tmp_path / "store")
    assert not (tmp_path / "store").exists()
