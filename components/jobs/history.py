"""What came before: the attempts of this launch that have failed, as their records tell them."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from components.jobs.attempts import records
from training.run_folder import RunFolder


@dataclass(frozen=True)
class Past:
    """An attempt that failed.

    Attributes:
        number: The attempt's.
        what: Class of its incident.
        fingerprint: See `components.jobs.fingerprint`.
        host: The machine that was to blame; empty where none was.
        saved_from: Step of the newest checkpoint when it began.
        saved: Likewise when it ended.
        counts: Whether it uses up one of the attempts that may pass without progress.
        skipped: Whether the step of its incident is left out from then on.
    """

    number: int
    what: str
    fingerprint: str = ""
    host: str = ""
    saved_from: int = 0
    saved: int = 0
    counts: bool = True
    skipped: bool = False

    @property
    def progressed(self) -> bool:
        """Whether it left a checkpoint that is newer than those before."""
        return self.saved > self.saved_from

    def as_record(self) -> dict[str, Any]:
        """For the attempt's record."""
        return asdict(self)


def history_of(folder: RunFolder, pipeline_job: str, since: int) -> tuple[Past, ...]:
    """The attempts that failed before, oldest first, so that a step that starts again decides the same.

    Args:
        folder: The run's.
        pipeline_job: Name of the pipeline job, whose earlier starts count too; empty: none do.
        since: First attempt of this start.
    """
    mine = [
        record
        for record in records(folder)
        if record.get("number", 0) >= since or (pipeline_job and record.get("pipeline_job") == pipeline_job)
    ]
    return tuple(past for record in mine if (past := _past(record)) is not None)


def without_progress(history: Sequence[Past]) -> int:
    """How many attempts in a row, up to the last, ended without a newer checkpoint; preemptions do not count."""
    number = 0
    for past in reversed(history):
        if past.progressed:
            break
        number += past.counts
    return number


def last_counted(history: Iterable[Past]) -> Past | None:
    """The last attempt that was not preempted."""
    return next((past for past in reversed(tuple(history)) if past.counts), None)


def _past(record: dict[str, Any]) -> Past | None:
    number = record.get("number", 0)
    told = record.get("past")
    if not isinstance(told, dict):
        return Past(number, "lost") if record.get("outcome") == "lost" else None
    known = {field.name: type(field.default) for field in fields(Past) if field.name not in ("number", "what")}
    values = {name: told[name] for name, kind in known.items() if isinstance(told.get(name), kind)}
    return Past(number, str(told.get("what", "")), **values)
