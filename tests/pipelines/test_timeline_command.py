"""`shardline timeline`, and the line on goodput of `shardline status`."""

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from tests.training.ledger.lives import Life, new_folder
from training.errors import UserError

LINE = "goodput 62 % over 2 attempts (recovery 4.0 s, redone 1.0 s)"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHARDLINE_STORE", raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    return new_folder(tmp_path / ".shardline")


def train(folder):
    life = Life(folder, num_steps=8)
    life.supervise()
    life.begin()
    life.load(start_s=0.0, checks_s=0.0, rendezvous_s=0.0, init_s=0.0)
    life.steps(1, 4)
    life.saved(3)
    life.fail("signal", after_s=0.0, decide_s=4.0, rank=1)
    life.begin()
    life.steps(4, 8)
    life.end()
    life.supervise("end")


def shardline(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def mistake(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert isinstance(result.exception, UserError), (result.output, result.exception)
    return str(result.exception)


def test_the_table_and_the_page_written_anew(folder):
    train(folder)
    for store in ((), ("--store", folder.root)):
        folder.timeline.unlink(missing_ok=True)
        title, head, *lines = shardline("timeline", "a-run", *store).splitlines()
        assert title == f"a-run: {LINE}, 13 s in all"
        assert head.split() == ["bucket", "time", "share", "what", "it", "is"]
        assert [line.split()[:4] for line in lines if "%" in line] == [
            ["step", "8.0", "s", "61.5"],
            ["redone", "1.0", "s", "7.7"],
            ["recovery", "4.0", "s", "30.8"],
        ]
        assert (
            "attempt 1: signal after step 4, rank 1; restarted in place: it may pass; 1 step lost; stepping again "
            "after 5.0 s"
        ) in lines
        assert lines[-1] == f"Page  {folder.timeline}"
        assert "<title>a-run · timeline</title>" in folder.timeline.read_text()


def test_a_run_that_has_none(folder):
    assert "has not begun an attempt yet" in mistake("timeline", "a-run")
    assert "did you mean 'a-run'" in mistake("timeline", "a-rum")
    assert "is not valid" in mistake("timeline", "../a-run")
    assert not folder.timeline.exists()


def test_the_status_of_a_run_has_its_goodput(folder):
    train(folder)
    assert LINE in shardline("status", "a-run", "--store", folder.root)
