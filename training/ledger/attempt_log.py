"""The time of one attempt, sorted as its events come.

The events of the leading rank and of the nodes move a pointer through the attempt's life; what lies between two
positions goes into the bucket of the state that the attempt was in. So there is neither a gap nor an overlap,
whatever the events are. What only its end can tell (which steps are lost, whether the last silence was a hang) is
decided when somebody asks, and no event has to be read again for it.
"""

import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from training.events import Evaluation, RanksEnded, Span, TrainStep
from training.ledger.buckets import Bucket, Interval
from training.ledger.times import duration, microseconds

_TYPICAL_STEPS = 100
"""Steps after the first whose median is what a step takes."""

_JUMP_US = 1_000_000
_JUMP_SHARE = 10
"""A step that ends so far from where the one before and its own length put it, tells that the clock was set: by
more than a second, and a tenth of the step."""

_SILENT = {"hang", "stall_timeout", "node_lost", "network"}
"""Classes of incidents before which nothing moves."""

_ASKED = {"interrupted", "preempted"}
"""Classes of incidents that ranks end with because they were asked to."""


@dataclass(frozen=True)
class Close:
    """How an attempt ended, as far as it is known; times in microseconds since the epoch.

    Attributes:
        limit: Where its part of the run's life ends: the next attempt's start, the run's end, or now.
        ended: When its ranks ended, at most `limit`.
        what: How: `succeeded` or the class of the incident; None while it goes on.
        lost_from: The first step that is lost; None: none is.
        typical: What a step takes, in microseconds; None where it is not known.
        queued_until: When its queue admitted it; None: there was none.
    """

    limit: int
    ended: int
    what: str | None
    lost_from: int | None = None
    typical: int | None = None
    queued_until: int | None = None


class AttemptLog:
    """One attempt.

    Args:
        number: Counted from 1.
        started: In microseconds since the epoch.

    Attributes:
        intervals: From its start to `cursor`, as far as can be told before its end.
        cursor: Until where its time is sorted.
        last_sign: When its ranks or nodes last said something.
        ranks_ended: When the first ranks were told to have ended; None while they have not.
        what: How, where the node knows it.
        exported: Whether the model is written.
        first_step: The first that was done; None before it, as the following.
        first_step_ended: When.
        last_step: The last that was done.
    """

    def __init__(self, number: int, started: int) -> None:
        self.number = number
        self.started = started
        self.intervals: list[Interval] = []
        self.cursor = self.last_sign = started
        self.ranks_ended: int | None = None
        self.what: str | None = None
        self.exported = False
        self.first_step: int | None = None
        self.first_step_ended: int | None = None
        self.last_step: int | None = None
        self._totals: Counter[Bucket] = Counter()
        self._bucket: Bucket = "start"
        self._is_loading = False
        self._open: dict[str, set[str]] = {"checks": set(), "rendezvous": set()}
        self._working_on: int | None = None
        self._first: int | None = None
        self._later: list[int] = []
        self._last_ended: int | None = None
        self._offset = 0
        # Since the last step, of what the next step's own account has too.
        self._told: Counter[Bucket] = Counter()
        self._is_saved = False
        self._before_save: Bucket = "step"

    def take(self, event: Any, ceiling: int) -> None:
        """Take in an event of this attempt's ranks or nodes.

        Args:
            event: The event.
            ceiling: The latest time that it can have; its writer's clock may be ahead.
        """
        at = self._time_of(event.time, ceiling)
        self.last_sign = max(self.last_sign, at)
        if isinstance(event, TrainStep):
            self._take_step(event, ceiling)
        elif isinstance(event, Evaluation) and event.name == "step":
            self._told["evaluation"] += at - self.cursor
            self._until(at, "evaluation")
        elif isinstance(event, RanksEnded):
            self.ranks_ended = at if self.ranks_ended is None else min(self.ranks_ended, at)
            self.what = self.what or event.what
        elif isinstance(event, Span) and event.name in self._open:
            self._take_node_span(event, at)
        elif isinstance(event, Span) and event.source.startswith("rank-0"):
            self._take_span(event, at)

    @property
    def typical_step(self) -> int | None:
        """Median of the steps after the first, in microseconds; None without any."""
        return round(statistics.median(self._later)) if self._later else None

    def num_lost(self, lost_from: int | None) -> int:
        """Steps done from this one on."""
        if lost_from is None or self.last_step is None or self.first_step is None:
            return 0
        return max(0, self.last_step + 1 - max(lost_from, self.first_step))

    def account(self, close: Close) -> Iterator[Interval]:
        """Its time from its start to its ranks' end, in the order of time."""
        for index in range(len(self.intervals)):
            yield from self._settled(index, close)
        yield from self._tail(close)

    def totals(self, close: Close) -> Counter[Bucket]:
        """What `account` adds up to, in microseconds, without going through all of it."""
        totals = self._totals.copy()
        changing = self._changing(close)
        for index in changing:
            totals[self.intervals[index].bucket] -= self.intervals[index].length
        settled = (interval for index in changing for interval in self._settled(index, close))
        for interval in (*settled, *self._tail(close)):
            totals[interval.bucket] += interval.length
        return totals

    def _changing(self, close: Close) -> list[int]:
        """Intervals that `_settled` may change: those up to the first step, and those that are cut off or lost."""
        last = len(self.intervals)
        first = last if self._first is None else self._first + 1
        while last > first:
            interval = self.intervals[last - 1]
            if interval.end <= close.limit and not _is_lost(interval, close):
                break
            last -= 1
        return [*range(first), *range(last, len(self.intervals))]

    def _settled(self, index: int, close: Close) -> Iterator[Interval]:
        """An interval as the attempt's end makes it, in at most two parts."""
        raw = self.intervals[index]
        start, end, bucket = raw.start, min(raw.end, close.limit), raw.bucket
        head, until = bucket, start
        if bucket == "start" and close.queued_until is not None:
            head, until = "queue", min(end, close.queued_until)
        elif index == self._first and close.typical is not None:
            head, until = "compile", min(end, raw.end - close.typical)
        if until > start:
            yield raw._replace(end=until, bucket=head)
            start = until
        if end > start:
            is_redone = bucket in ("step", "data_wait") and _is_lost(raw, close)
            yield raw._replace(start=start, end=end, bucket="redone" if is_redone else bucket)

    def _tail(self, close: Close) -> Iterator[Interval]:
        """From the last event to the ranks' end."""
        start = min(self.cursor, close.limit)
        if close.ended <= start:
            return
        bucket = self._bucket_of_tail(close.what)
        if bucket == "start" and close.queued_until is not None and close.queued_until > start:
            until = min(close.ended, close.queued_until)
            yield Interval(start, until, "queue", self.number)
            start = until
        if close.ended > start:
            yield Interval(start, close.ended, bucket, self.number, self._working_on)

    def _bucket_of_tail(self, what: str | None) -> Bucket:
        if what is None or self._bucket == "start":
            return self._bucket
        if what in _SILENT:
            return "hang"
        if self._bucket == "step":
            return "recovery" if self._is_saved and what in _ASKED else "redone"
        return self._bucket

    def _take_step(self, event: TrainStep, ceiling: int) -> None:
        length = duration(event.seconds)
        self._mind_the_clock(event.time, length)
        end = self._time_of(event.time, ceiling)
        self._working_on = max(event.step, self._working_on or 0)
        # What is not in the step's own account went on with whatever was told last.
        self._until(max(self.cursor, end - length), self._bucket)
        inside: dict[Bucket, float] = {"evaluation": event.evaluation_s, "save_stall": event.checkpoint_s}
        for bucket, seconds in inside.items():
            self._until(min(end, self.cursor + max(0, duration(seconds) - self._told[bucket])), bucket)
        self.last_step = self._working_on
        self._until(min(end, self.cursor + duration(event.data_s)), "data_wait")
        if self.first_step is None:
            self.first_step, self.first_step_ended = event.step, end
        elif len(self._later) < _TYPICAL_STEPS:
            self._later.append(end - self.cursor)
        if self._first is None and end > self.cursor:
            self._first = len(self.intervals)
        self._until(end, "redone" if event.skipped else "step")
        self._working_on += 1
        self._last_ended = end
        self._told.clear()
        self._is_saved = False
        self._bucket = "export" if event.step >= event.num_steps else "step"

    def _mind_the_clock(self, time: float, length: int) -> None:
        """Go by the steps' own lengths where the clock was set between two of them."""
        seen = microseconds(time)
        if seen is None or self._last_ended is None:
            return
        expected = self._last_ended + length
        if abs(seen + self._offset - expected) > _JUMP_US + length // _JUMP_SHARE:
            self._offset = expected - seen

    def _take_node_span(self, event: Span, at: int) -> None:
        if self._is_loading:
            return  # of a node whose clock is behind
        if event.phase == "start":
            self._open[event.name].add(event.source)
        else:
            self._open[event.name].discard(event.source)
        # While one node still checks, the others can but wait for it.
        self._enter(
            at, "checks" if self._open["checks"] else "rendezvous" if self._open["rendezvous"] else "start"
        )

    def _take_span(self, event: Span, at: int) -> None:
        is_start = event.phase == "start"
        if event.name == "load":
            self._is_loading = True
            self._enter(at, "init" if is_start or not event.ok else "compile")
        elif event.name == "restore" and self.first_step is None:
            self._enter(at, "restore" if is_start or not event.ok else "init")
        elif event.name == "checkpoint" and is_start:
            self._before_save = self._bucket
            self._enter(at, "save_stall")
        elif event.name == "checkpoint" and self._bucket == "save_stall" and event.ok:
            self._told["save_stall"] += at - self.cursor
            self._enter(at, self._before_save)
            self._is_saved = True
        elif event.name == "export":
            self._enter(at, "export")
            self.exported = not is_start and event.ok

    def _enter(self, at: int, bucket: Bucket) -> None:
        self._until(at, self._bucket)
        self._bucket = bucket

    def _until(self, at: int, bucket: Bucket) -> None:
        if at > self.cursor:
            self.intervals.append(Interval(self.cursor, at, bucket, self.number, self._working_on))
            self._totals[bucket] += at - self.cursor
            self.cursor = at

    def _time_of(self, time: float, ceiling: int) -> int:
        seen = microseconds(time)
        return self.cursor if seen is None else max(self.cursor, min(seen + self._offset, ceiling))


def _is_lost(interval: Interval, close: Close) -> bool:
    return close.lost_from is not None and interval.step is not None and interval.step >= close.lost_from
