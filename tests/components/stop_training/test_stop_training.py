import subprocess
import sys
from types import SimpleNamespace

import pytest

from components.step import Step
from components.stop_training.component import stop_training
from tests.training.ledger.lives import Life
from training.errors import UserError
from training.events import Note, Span, read_events
from training.run_folder import RunFolder
from training.store import Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def close(store, state="FAILED"):
    report = SimpleNamespace(path=str(store.root / "report.md"))
    status = SimpleNamespace(state=state)
    stop_training.python_func(store=str(store.root), run="a-run", job="", status=status, report=report)
    return read_events(RunFolder(store.root, "a-run").events)


def test_a_run_of_which_nothing_is_left_is_closed_quietly(store):
    start, end = close(store, "SUCCEEDED")
    assert (start.phase, end.phase, end.ok, end.detail) == ("start", "end", True, "the pipeline ended: SUCCEEDED")


def test_unfinished_folders_are_swept_and_a_stop_request_is_taken_back(store):
    folder = RunFolder(store.root, "a-run")
    folder.path.mkdir(parents=True)
    folder.stop_request.touch()
    code = """
import os, signal, sys
from training.store import Store
with Store(sys.argv[1]).publish("models", "key", {}):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code, str(store.root)])
    with store.publish("models", "other", {}) as mine:
        events = close(store)
        assert mine.exists(), "its writer is alive"
    assert not folder.stop_request.exists()
    assert [event.text for event in events if isinstance(event, Note)] == [
        "removed 1 unfinished folder(s) from the store"
    ]
    assert [event.ok for event in events if isinstance(event, Span)] == [True, True]
    assert store.get("models", "key") is None


def test_the_page_says_why_the_training_failed_and_else_how_the_pipeline_ended(store):
    close(store, "SUCCEEDED")
    page = store.root / "report.md"
    assert page.read_text() == "## a-run\n\nThe pipeline ended: SUCCEEDED.\n"
    attempt = RunFolder(store.root, "a-run").attempt(2)
    attempt.mkdir(parents=True)
    (attempt / "report.md").write_text("## a-run: attempt 2 failed\n")
    close(store)
    assert page.read_text() == "## a-run: attempt 2 failed\n"


def test_the_page_has_the_words_of_a_step_that_failed_before_the_training(store):
    folder = RunFolder(store.root, "a-run")
    with pytest.raises(SystemExit), Step("preflight", str(store.root), "a-run"):
        raise UserError("the claim `x` is ReadWriteOnce")
    close(store)
    page = (store.root / "report.md").read_text()
    assert "`preflight` failed:" in page and "the claim `x` is ReadWriteOnce" in page
    with Step("preflight", str(store.root), "a-run"):
        pass
    close(store)
    assert "preflight" not in (store.root / "report.md").read_text(), "it was mended since"
    assert folder.events.is_dir()


def test_a_pipeline_that_is_made_to_go_on_later_may_train_again(store):
    folder = RunFolder(store.root, "a-run")
    folder.path.mkdir(parents=True)
    (folder.path / "verdict.json").write_text("{}")
    close(store)
    assert not (folder.path / "verdict.json").exists()


def test_a_run_that_preflight_refused_can_be_closed(store):
    close(store)
    assert not RunFolder(store.root, "a-run").config_file.exists()


def test_the_page_about_the_run_s_time_is_there_whatever_became_of_the_training(store):
    folder = RunFolder(store.root, "a-run")
    close(store)
    assert not folder.timeline.exists(), "it has made no attempt"
    life = Life(folder)
    life.supervise()
    life.begin()
    life.load()
    life.steps(1, 3)
    close(store)
    page = folder.timeline.read_text()
    assert "Ended" in page and "steps that count" in page
