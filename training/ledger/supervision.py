"""When somebody looked after a run: the spans of its train step, whose ends may be missing."""

from typing import Any

from training.events import Span
from training.ledger.buckets import Bucket, Interval
from training.ledger.times import microseconds


class Supervision:
    """What the events of the train step tell of when it worked.

    Attributes:
        is_open: Whether it works, as far as is told.
        last_sign: When it last said something, in microseconds since the epoch; 0 before.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.last_sign = 0
        self._spans: list[tuple[int, int]] = []
        self._began: int | None = None

    def take(self, event: Any) -> None:
        """Take in an event of the train step."""
        at = microseconds(event.time)
        if at is None:
            return
        if isinstance(event, Span) and event.name == event.source and event.phase == "start":
            self._end(self.last_sign)  # one that was killed said no more than that
            self._began, self.is_open = at, True
        elif isinstance(event, Span) and event.name == event.source:
            self._end(at)
            self.is_open = False
        self.last_sign = max(self.last_sign, at)

    def sort(self, start: int, end: int, attempt: int, *, was_asked: bool = False) -> list[Interval]:
        """The time between two attempts: recovery where somebody looked after the run, else stopped.

        Args:
            start: When the attempt ended, in microseconds since the epoch, as the following.
            end: When the next began, or the run's end.
            attempt: The number of the one that ended.
            was_asked: Whether somebody had asked it to stop, so that there was nothing to recover from before the
                next start.
        """
        spans = [*self._spans, *([(self._began, end)] if self._began is not None else [])]
        if not spans:
            spans = [(start, end)]  # ranks without a supervisor's events: somebody started them
        found: list[Interval] = []
        cursor = start
        for began, ended in sorted(spans):
            bucket: Bucket = "stopped" if was_asked and began <= start else "recovery"
            began, ended = (min(max(time, cursor), end) for time in (began, ended))
            found += [Interval(cursor, began, "stopped", attempt), Interval(began, ended, bucket, attempt)]
            cursor = ended
        found.append(Interval(cursor, end, "stopped", attempt))
        return [interval for interval in found if interval.length > 0]

    def _end(self, at: int) -> None:
        if self._began is not None:
            self._spans.append((self._began, max(self._began, at)))
            self._began = None
