"""How a rank that failed says why, and leaves."""

import json
import multiprocessing
import os
import time

import pytest

from training import worker
from training.background_events import BackgroundEventWriter
from training.errors import UserError
from training.nonfinite import NonFinite
from training.patience import StorageError


def report(error, attempt, events, seconds):
    """Report an error from a process of its own; returns its exit code, and how long it took."""

    def fail():
        worker._LEAVE_S = seconds
        try:
            raise error
        except BaseException as caught:
            worker._report(caught, attempt, 3, BackgroundEventWriter(events, "rank-3"))

    process = multiprocessing.get_context("fork").Process(target=fail)
    started = time.monotonic()
    process.start()
    process.join(30)
    return process.exitcode, time.monotonic() - started


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UserError("mend it"), {"exit_code": 64, "message": "mend it", "traceback": ""}),
        (KeyError("lost"), {"exit_code": 1, "message": "KeyError: 'lost'"}),
        (
            NonFinite("the loss of step 7 is nan", 7),
            {"exit_code": 1, "message": "the loss of step 7 is nan", "what": "nonfinite", "step": 7},
        ),
        (
            OSError(116, "Stale file handle"),
            {"exit_code": 1, "message": "OSError: [Errno 116] Stale file handle", "what": "storage"},
        ),
        (StorageError("rank 0: it hangs"), {"exit_code": 1, "message": "rank 0: it hangs", "what": "storage"}),
    ],
    ids=["user", "any", "nonfinite", "disk", "another's disk"],
)
def test_the_record_has_what_the_launcher_needs(tmp_path, error, expected):
    code, _ = report(error, tmp_path, tmp_path / "events", seconds=5)
    record = json.loads((tmp_path / "errors" / "rank-3.json").read_text())
    assert code == expected["exit_code"] and record["rank"] == 3
    assert {name: record.get(name) for name in expected} == expected
    assert "what" in record if "what" in expected else "what" not in record
    assert ("Traceback" in record["traceback"]) == (code == 1)


def test_a_disk_that_hangs_does_not_keep_a_failing_rank(tmp_path, monkeypatch):
    events = tmp_path / "events"
    events.mkdir()
    os.mkfifo(events / "rank-3.jsonl")
    monkeypatch.setattr(worker, "write_atomically", lambda path, text: time.sleep(60))
    code, seconds = report(KeyError("lost"), tmp_path, events, seconds=0.2)
    assert code == 1 and seconds < 5
