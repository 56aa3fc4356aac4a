"""How long each part of an attempt may take: limits of the launcher, since operators enforce theirs late."""

from dataclasses import dataclass

from components.cluster.job_state import Phase
from training.config import ResilienceConfig


@dataclass(frozen=True)
class Overdue:
    """A limit that was passed.

    Attributes:
        what: Class of the incident.
        sentence: What took too long, and where the limit stands.
    """

    what: str
    sentence: str


class Deadlines:
    """Watches the limits of one attempt.

    Args:
        limits: From the configuration.
        now: Seconds of a clock that never goes back; likewise below.
    """

    def __init__(self, limits: ResilienceConfig, now: float) -> None:
        self._limits = limits
        self._phase = Phase.QUEUED
        self._since = now
        self._progress = now

    def check(self, phase: Phase, *, progressed: bool, now: float) -> Overdue | None:
        """Take in how the attempt stands; the limit that it has passed, if any.

        Args:
            phase: Of the job.
            progressed: Whether a rank has said anything since the last call.
            now: Seconds.
        """
        if phase is not self._phase:
            self._phase, self._since, self._progress = phase, now, now
        if progressed:
            self._progress = now
        limits, taken = self._limits, now - self._since
        if phase is Phase.QUEUED:
            return _overdue("queue_timeout", "waited in the queue", taken, limits.queue_timeout_s)
        if phase is Phase.STARTING:
            return _overdue("start_timeout", "has not started all of its pods", taken, limits.start_timeout_s)
        if phase is Phase.RUNNING:
            silent = now - self._progress
            return _overdue("run_timeout", "ran", taken, limits.run_timeout_s) or _overdue(
                "stall_timeout", "made no progress", silent, limits.stall_timeout_s
            )
        return None


def _overdue(what: str, did: str, taken: float, limit: int | None) -> Overdue | None:
    if limit is None or taken <= limit:
        return None
    return Overdue(what, f"the job {did} for {taken:.0f} s, and resilience.{what}_s is {limit}")
