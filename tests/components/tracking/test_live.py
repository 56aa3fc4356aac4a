"""A training in MLflow while it runs."""

import os
import time
from collections.abc import Callable

import pytest

from components.step import Interrupted
from components.tracking.live import LiveLog
from tests.registering import START, ReadyRun, client_of, register, write_attempt, write_steps
from tests.runs import free_port
from training.config import RunConfig
from training.run_folder import RunFolder

FAST = {"first_after_s": 0.0, "every_s": 0.1}


@pytest.fixture
def fresh_run(ready_run: ReadyRun) -> RunFolder:
    """A run that has not taken a step yet."""
    folder = ready_run()
    for path in folder.events.iterdir():
        path.unlink()
    return folder


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.1)


def losses(folder: RunFolder) -> list[tuple[int, str]]:
    """Steps of the run's loss, and its status."""
    client = client_of(f"sqlite:///{folder.root}/mlflow.db")
    found = client.search_runs(["1"], filter_string="tags.`shardline.run` = 'demo'")
    return [
        (point.step, run.info.status)
        for run in found
        for point in client.get_metric_history(run.info.run_id, "train/loss")
    ]


def test_steps_are_seen_as_they_come_and_registering_adds_what_is_left(fresh_run: RunFolder) -> None:
    notes: list[str] = []
    before = dict(os.environ)
    with LiveLog(fresh_run, fresh_run.config(), notes.append, **FAST):
        write_steps(fresh_run, attempt=1, steps=range(1, 3), start=START, loss=3.0)
        wait_for(lambda: losses(fresh_run) == [(1, "RUNNING"), (2, "RUNNING")])
        write_steps(fresh_run, attempt=2, steps=range(2, 4), start=START + 9, loss=3.0)
        wait_for(lambda: len(losses(fresh_run)) == 3)
    assert notes == []
    assert dict(os.environ) == before
    # The step that was computed twice stays as it was first seen, and nothing is there twice.
    write_steps(fresh_run, attempt=3, steps=range(4, 5), start=START + 20, loss=3.0)
    register(fresh_run)
    assert losses(fresh_run) == [(step, "FINISHED") for step in (1, 2, 3, 4)]


def test_the_goodput_is_seen_while_it_trains_and_after_an_incident(fresh_run: RunFolder) -> None:
    with LiveLog(fresh_run, fresh_run.config(), print, **FAST):
        write_attempt(fresh_run, 1, "oom", START - 5, seconds=20)
        write_steps(fresh_run, attempt=1, steps=range(1, 5), start=START, loss=3.0)
        wait_for(lambda: bool(points(fresh_run, "goodput")))
        # Once, until it has grown by a hundredth, or something failed.
        first = len(points(fresh_run, "goodput"))
        write_steps(fresh_run, attempt=2, steps=range(3, 5), start=START + 30, loss=3.0)
        wait_for(lambda: len(losses(fresh_run)) == 4)
        assert len(points(fresh_run, "goodput")) == first
    assert len(points(fresh_run, "goodput/recovery")) >= 1


def points(folder: RunFolder, key: str) -> list[int]:
    client = client_of(f"sqlite:///{folder.root}/mlflow.db")
    found = client.search_runs(["1"], filter_string="tags.`shardline.run` = 'demo'")
    return [point.step for run in found for point in client.get_metric_history(run.info.run_id, key)]


@pytest.mark.parametrize(("error", "status"), [(RuntimeError, "FAILED"), (Interrupted, "KILLED")])
def test_how_a_training_that_failed_ends(fresh_run: RunFolder, error: type[BaseException], status: str) -> None:
    with pytest.raises(error), LiveLog(fresh_run, fresh_run.config(), print, **FAST):
        write_steps(fresh_run, attempt=1, steps=range(1, 3), start=START, loss=3.0)
        wait_for(lambda: len(losses(fresh_run)) == 2)
        raise error
    assert losses(fresh_run) == [(1, status), (2, status)]


def test_a_short_training_does_not_open_mlflow(fresh_run: RunFolder) -> None:
    (fresh_run.root / "mlflow.db").unlink()
    with LiveLog(fresh_run, fresh_run.config(), print, every_s=0.1):
        write_steps(fresh_run, attempt=1, steps=range(1, 3), start=START, loss=3.0)
        time.sleep(0.5)
    assert not (fresh_run.root / "mlflow.db").exists()


def test_an_mlflow_that_is_down_is_told_once_and_holds_nothing_up(
    fresh_run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("components.tracking.live._AGAIN_AFTER_S", 0.1)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    nowhere = f"http://127.0.0.1:{free_port()}"
    registry = {"registry": {"tracking_uri": nowhere}}
    config = RunConfig.model_validate({**fresh_run.config().model_dump(), **registry})
    notes: list[str] = []
    with LiveLog(fresh_run, config, notes.append, **FAST):
        write_steps(fresh_run, attempt=1, steps=range(1, 3), start=START, loss=3.0)
        wait_for(lambda: bool(notes))
        time.sleep(1.0)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    (note,) = notes
    assert note.startswith("the training is not shown in MLflow while it runs, and goes on without")
    assert nowhere in note
