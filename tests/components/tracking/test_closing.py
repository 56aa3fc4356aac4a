"""A run whose pipeline ended before the register step could end it in MLflow."""

import socket
import time
from types import SimpleNamespace

import pytest

from components.stop_training.component import stop_training
from components.tracking.connection import connect
from components.tracking.mirror import Mirror
from tests.registering import ReadyRun, client_of, register
from tests.runs import free_port
from training.events import Note, read_events
from training.run_folder import RunFolder


def close(folder: RunFolder, state: str) -> list[str]:
    """Run the exit handler; returns what it said."""
    report = SimpleNamespace(path=str(folder.path / "report.md"))
    status = SimpleNamespace(state=state)
    stop_training.python_func(store=str(folder.root), run=folder.run, job="", status=status, report=report)
    return [event.text for event in read_events(folder.events) if isinstance(event, Note)]


def show(folder: RunFolder) -> None:
    """Log the run as a train step does that is killed then."""
    with connect(None, folder.root, print) as connection:
        mirror = Mirror(connection, folder, folder.config())
        mirror.resume()
        mirror.write(read_events(folder.events))


def statuses(folder: RunFolder) -> list[str]:
    found = client_of(f"sqlite:///{folder.root}/mlflow.db").search_runs(["1"])
    return sorted(run.info.status for run in found if run.info.run_name.startswith(folder.run))


def test_a_run_is_ended_as_its_pipeline_was(ready_run: ReadyRun) -> None:
    folder, other = ready_run(), ready_run("other")
    show(folder)
    show(other)
    assert statuses(folder) == ["RUNNING"] * 3
    assert close(folder, "SUCCEEDED") == []
    assert statuses(folder) == ["RUNNING"] * 3
    assert close(folder, "FAILED") == []
    assert statuses(folder) == ["FAILED"] * 3
    # Started again, and stopped by hand.
    show(folder)
    folder.stop_request.touch()
    close(folder, "FAILED")
    assert statuses(folder) == ["FAILED", "FAILED", "KILLED"]
    show(folder)
    close(folder, "CANCELLED")
    assert statuses(folder) == ["FAILED", "FAILED", "KILLED"]
    # And in the end it comes through; a pipeline that fails after that changes nothing.
    register(folder)
    close(folder, "FAILED")
    assert "FINISHED" in statuses(folder)
    assert statuses(other) == ["RUNNING"] * 3


def test_what_mlflow_does_not_know_is_not_told(ready_run: ReadyRun) -> None:
    never_logged = ready_run(fresh_database=True)
    assert close(never_logged, "FAILED") == []
    assert not (never_logged.root / "mlflow.db").exists()


@pytest.mark.parametrize("is_silent", [False, True])
def test_an_mlflow_that_is_away_neither_fails_nor_holds_up_the_end(
    ready_run: ReadyRun, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr("components.tracking.closing._PATIENCE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if is_silent else free_port()
        folder = ready_run(tracking_uri=f"http://127.0.0.1:{port}")
        began = time.monotonic()
        (note,) = close(folder, "FAILED")
    assert time.monotonic() - began < 4
    assert note.startswith("MLflow may show the run as running until it is started again: there ")
