"""From what an attempt left behind to its incident: the first failing rank, and its last words."""

import json
import signal
from pathlib import Path
from typing import Any

from components.jobs.launchers import Ending
from training.errors import EXIT_INTERRUPTED, EXIT_INVALID
from training.events import Incident
from training.run_folder import RunFolder


def judge(folder: RunFolder, number: int, ending: Ending) -> Incident:
    """What ended an attempt.

    Args:
        folder: The run's.
        number: The attempt's.
        ending: What its launcher saw.
    """
    attempt = folder.attempt(number)
    errors = [_read(path) for path in sorted((attempt / "errors").glob("*.json"))]
    own_words = sorted((e for e in errors if "message" in e), key=lambda e: e["time"])
    by_torchrun = sorted((e for e in errors if "message" not in e and "time" in e), key=lambda e: e["time"])
    # The ranks that are left after one lost its machine or its memory only tell that a peer is gone.
    if ending.what is not None:
        return _incident(number, ending.what, ending.exit_code, None, ending.log, ending)
    # A rank that was killed leaves no words, and the words of the others tell only that a peer is gone.
    # SIGTERM during the start-up is a stop, as it is later on.
    killed = next((e for e in by_torchrun if e["exit_code"] < 0 and e["exit_code"] != -signal.SIGTERM), None)
    if killed is not None:
        log = attempt / "logs" / f"rank-{killed['rank']}.err"
        words = f"killed by signal {-killed['exit_code']}\n{tail(log)}".rstrip()
        return _incident(number, "signal", 128 - killed["exit_code"], killed["rank"], words, ending)
    if own_words:
        first = own_words[0]
        what = "invalid" if first["exit_code"] == EXIT_INVALID else "exception"
        words = first["message"] if what == "invalid" else first["traceback"] or first["message"]
        return _incident(number, what, first["exit_code"], first["rank"], words, ending)
    what = "interrupted" if ending.exit_code == EXIT_INTERRUPTED else "exception"
    return _incident(number, what, ending.exit_code, None, ending.log, ending)


def tail(path: Path, num_lines: int = 20) -> str:
    """The last lines of a log; empty where there is none."""
    if not path.is_file():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-num_lines:])


def _incident(
    number: int, what: str, exit_code: int | None, rank: int | None, words: str, ending: Ending
) -> Incident:
    # A configuration error is told in its own words alone.
    seen = "" if what == "invalid" else ending.evidence
    evidence = "\n".join(part for part in (words, seen) if part)
    return Incident(attempt=number, what=what, rank=rank, exit_code=exit_code, node=ending.node, evidence=evidence)


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}  # half written by a rank that was killed
    return content
