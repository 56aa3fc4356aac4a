"""The records of a job's attempts: `attempts/<n>/attempt.json`, and how a pipeline's job ended for good."""

import json
import time
from typing import Any

from components.jobs.launchers import Ending
from training.events import Incident
from training.patience import patiently
from training.run_folder import RunFolder
from training.store import write_atomically


def write_record(folder: RunFolder, record: dict[str, Any]) -> None:
    """Save the record of the attempt `record["number"]`."""
    path = folder.attempt(record["number"]) / "attempt.json"
    patiently(lambda: write_atomically(path, json.dumps(record, indent=1)))


def close_record(
    folder: RunFolder, record: dict[str, Any], outcome: str, ending: Ending | None = None, **more: Any
) -> dict[str, Any]:
    """Save a record with the attempt's end.

    Args:
        folder: The run's.
        record: Of the attempt.
        outcome: `succeeded`, or the class of its incident; `interrupted`, `lost` (its launcher was),
            `not_begun` (its nodes had left) and `no_replacement` are none.
        ending: What the launcher saw.
        **more: What else to keep.

    Returns:
        The record as it is now.
    """
    exit_code = None if ending is None else ending.exit_code
    closed = {**record, "ended": time.time(), "outcome": outcome, "exit_code": exit_code, **more}
    write_record(folder, closed)
    return closed


def read_record(folder: RunFolder, number: int) -> dict[str, Any]:
    """The record of an attempt; empty if its launcher was killed before it wrote one, or it is damaged."""
    try:
        record = json.loads((folder.attempt(number) / "attempt.json").read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) and record.get("number") == number else {}


def records(folder: RunFolder) -> list[dict[str, Any]]:
    """The records of all attempts, in their order."""
    return [record for number in folder.attempts() if (record := read_record(folder, number))]


def save_verdict(folder: RunFolder, job: str, incident: Incident, sentence: str, exit_code: int) -> None:
    """Remember that the job of a pipeline failed for good."""
    if job:
        verdict = {"job": job, "what": incident.what, "sentence": sentence, "exit_code": exit_code}
        write_atomically(folder.job_path / "verdict.json", json.dumps(verdict))


def forget_verdict(folder: RunFolder) -> None:
    """At a pipeline's end: when somebody has it go on later, something may have been mended."""
    (folder.job_path / "verdict.json").unlink(missing_ok=True)


def verdict_of(folder: RunFolder, job: str) -> dict[str, Any] | None:
    """The verdict of the same pipeline job: Kubeflow starts a step that failed again, which changes nothing."""
    try:
        verdict = json.loads((folder.job_path / "verdict.json").read_text())
    except (OSError, ValueError):
        return None
    is_verdict = isinstance(verdict, dict) and {"job", "what", "sentence", "exit_code"} <= verdict.keys()
    return verdict if job and is_verdict and verdict["job"] == job else None
