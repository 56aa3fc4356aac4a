"""What the supervisor recorded of an attempt, as far as the ledger needs it."""

import json
from dataclasses import dataclass
from typing import Any

from training.ledger.times import microseconds
from training.run_folder import RunFolder

NEVER = 10**18
"""Later than any time of a run."""


@dataclass(frozen=True)
class Record:
    """An attempt as its supervisor saw it; times in microseconds since the epoch, None where they are not known.

    Attributes:
        started: When its job was made, or its nodes were told to begin it.
        admitted: When its queue let it pass; None where it was in none, `NEVER` while it waits.
        ended: When the supervisor saw its end.
        outcome: `succeeded`, or how it failed.
    """

    started: int | None = None
    admitted: int | None = None
    ended: int | None = None
    outcome: str | None = None


def record_of(folder: RunFolder, number: int) -> Record:
    """The record of an attempt; without any fact if it is missing, half-written or of another version."""
    content = read_attempt(folder, number)
    outcome = content.get("outcome")
    return Record(
        started=microseconds(content.get("started")),
        admitted=_admitted(content.get("phases")),
        ended=microseconds(content.get("ended")),
        outcome=outcome if isinstance(outcome, str) else None,
    )


def _admitted(phases: Any) -> int | None:
    """From when each phase of the job was first seen to when it left its queue."""
    if not isinstance(phases, dict) or "queued" not in phases:
        return None
    later = [microseconds(time) for phase, time in phases.items() if phase != "queued"]
    return min((time for time in later if time is not None), default=NEVER)


def read_attempt(folder: RunFolder, number: int) -> dict[str, Any]:
    """What `attempt.json` holds; empty if its supervisor was killed before it wrote one."""
    try:
        content = json.loads((folder.attempt(number) / "attempt.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
