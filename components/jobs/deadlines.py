"""How long each part of an attempt may take: limits of the launcher, since operators enforce theirs late."""

import time
from collections.abc import Mapping
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
        began: When an earlier launcher of this attempt saw its phases begin, in seconds since the epoch, by their
            names: a launcher that starts again does not begin their times anew.

    Attributes:
        began: Likewise, as it is now.
    """

    def __init__(self, limits: ResilienceConfig, now: float, began: Mapping[str, float] | None = None) -> None:
        self.began = {name: began[name] for name in began} if began else {}
        self._limits = limits
        self._phase: Phase | None = None
        self._since = now
        self._progress = now

    def check(self, phase: Phase, *, progressed: bool, now: float) -> Overdue | None:
        """Take in how the attempt stands; the limit that it has passed, if any.

        Args:
            phase: Of the job.
            progressed: Whether a rank or a node has given a sign of life since the last call.
            now: Seconds.
        """
        if phase is not self._phase:
            self._enter(phase, now)
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
                "stall_timeout", "gave no sign of life", silent, limits.stall_timeout_s
            )
        return None

    def waited_s(self, now: float) -> float:
        """Seconds in the present phase."""
        return now - self._since

    def _enter(self, phase: Phase, now: float) -> None:
        is_taken_up = self._phase is None and phase.value in self.began
        # Clocks jump: what began in the future began now.
        taken = max(0.0, time.time() - self.began[phase.value]) if is_taken_up else 0.0
        if not is_taken_up:
            self.began[phase.value] = time.time()
        self._phase, self._since, self._progress = phase, now - taken, now


def _overdue(what: str, did: str, taken: float, limit: int | None) -> Overdue | None:
    if limit is None or taken <= limit:
        return None
    return Overdue(what, f"the job {did} for {taken:.0f} s, and resilience.{what}_s is {limit}")
