"""When a checkpoint is due by time."""

import time
from collections.abc import Callable


class SaveClock:
    """Tells when `checkpoint.every_s` has passed since the last save. Only the first rank's counts.

    Args:
        every_s: Seconds; None: never.
        now: Seconds of a clock that nobody sets.
    """

    def __init__(self, every_s: float | None, now: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._now = now
        self._saved_at = now()

    def is_due(self) -> bool:
        """Whether a save is."""
        return self._every_s is not None and self._now() - self._saved_at >= self._every_s

    def restart(self) -> None:
        """A save was made, or training begins."""
        self._saved_at = self._now()
