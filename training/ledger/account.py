"""The account of a run that grows with its events: a month of them is read once, and asked at every scrape."""

import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from training.checkpoint.folders import newest_step
from training.events import Alert, Decided, Incident
from training.ledger.attempt_log import AttemptLog, Close
from training.ledger.buckets import Bucket, Interval, Totals
from training.ledger.records import Record, record_of
from training.ledger.supervision import Supervision
from training.ledger.times import microseconds
from training.run_folder import RunFolder

_SOURCES = ("rank-", "node-")
"""What the sources of events begin with that tell of the training; other jobs' have a word before it."""

_SUPERVISOR = "train"
"""The source of the step that looks after the training."""


class Account:
    """The account of one run.

    Args:
        folder: The run's.

    Attributes:
        incidents: Of each attempt, the newest.
        decisions: Likewise.
        alerts: All.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder.seen_from("training")
        self._logs: dict[int, AttemptLog] = {}
        self._records: dict[int, Record] = {}
        self._supervision = Supervision()
        self.incidents: dict[int, Incident] = {}
        self.decisions: dict[int, Decided] = {}
        self.alerts: list[Alert] = []

    def take(self, events: Iterable[Any], now: float) -> None:
        """Take in events, each once.

        Args:
            events: As `EventReader.poll` gives them.
            now: In seconds since the epoch.
        """
        self._read_records()
        for event in events:
            self._take(event, now)
        for number in self._records:
            if self._records[number].started is not None:
                self._log(number, self._records[number].started)

    def totals(self, now: float | None) -> Totals | None:
        """What the run's life was spent on; None before its first attempt.

        Args:
            now: In seconds since the epoch, for a run that goes on; None for one that does not.
        """
        totals: Counter[Bucket] = Counter()
        closes = self._closes(now)
        for log, close, after in closes:
            totals.update(log.totals(close))
            for interval in after:
                totals[interval.bucket] += interval.length
        if not closes:
            return None
        found = {bucket: time for bucket, time in totals.items() if time}
        return Totals(closes[0][0].started, closes[-1][1].limit, found, len(closes))

    def intervals(self, now: float | None) -> Iterator[Interval]:
        """The run's life in the order of time, without a gap or an overlap; see `totals`."""
        for log, close, after in self._closes(now):
            yield from log.account(close)
            yield from after

    def attempts(self, now: float | None) -> list[tuple[AttemptLog, Close]]:
        """The attempts, each with how it ended; see `totals`."""
        return [(log, close) for log, close, _ in self._closes(now)]

    def goes_on(self) -> bool:
        """Whether its supervisor has not ended and it has not succeeded, as far as is told."""
        return self._supervision.is_open and self._what(max(self._logs, default=0)) != "succeeded"

    def _take(self, event: Any, now: float) -> None:
        if event.source == _SUPERVISOR:
            self._supervision.take(event)
            if isinstance(event, Incident):
                self.incidents[event.attempt] = event
            elif isinstance(event, Decided):
                self.decisions[event.attempt] = event
            return
        if not event.source.startswith(_SOURCES) or event.attempt < 1:
            return
        if isinstance(event, Alert):
            self.alerts.append(event)
        record = self._records.get(event.attempt) or record_of(self._folder, event.attempt)
        at = microseconds(event.time)
        log = self._log(event.attempt, record.started if record.started is not None else at)
        if log is None:
            return
        ceiling = max(microseconds(now) or 0, log.started)
        if record.ended is not None and record.ended > log.started:
            ceiling = min(ceiling, record.ended)
        log.take(event, ceiling)

    def _log(self, number: int, started: int | None) -> AttemptLog | None:
        """The log of an attempt, which begins when none before it can go on."""
        if number not in self._logs and started is not None:
            numbers = sorted(self._logs)
            place = bisect_left(numbers, number)
            if place > 0:
                before = self._logs[numbers[place - 1]]
                started = max(started, before.started, before.cursor)
            if place < len(numbers):
                started = min(started, self._logs[numbers[place]].started)
            self._logs[number] = AttemptLog(number, started)
        return self._logs.get(number)

    def _read_records(self) -> None:
        for number in self._folder.attempts():
            known = self._records.get(number)
            if known is None or known.ended is None:
                self._records[number] = record_of(self._folder, number)

    def _closes(self, now: float | None) -> list[tuple[AttemptLog, Close, list[Interval]]]:
        """Each attempt with how it ended, and with what came after that until the next."""
        logs = [self._logs[number] for number in sorted(self._logs)]
        if not logs:
            return []
        end = self._end(logs[-1], now)
        limits = [*(log.started for log in logs[1:]), end]
        typical = [log.typical_step for log in logs]
        known = [each for each in typical if each is not None]
        usual = round(statistics.median(known)) if known else None
        lost_from = self._lost_from(logs)
        closes = []
        for log, limit, own, lost in zip(logs, limits, typical, lost_from, strict=True):
            what = self._what(log.number)
            is_last = log is logs[-1]
            if what is None and not is_last:
                what = "lost"  # its supervisor was killed, and the next made another
            close = Close(
                limit=limit,
                ended=self._ended(log, what, limit, now),
                what=what,
                lost_from=lost,
                typical=own if own is not None else usual,
                queued_until=self._record(log.number).admitted,
            )
            ended = max(close.ended, min(log.cursor, limit))
            after = self._supervision.sort(ended, limit, log.number, was_asked=what == "interrupted")
            closes.append((log, close, after))
        return closes

    def _end(self, last: AttemptLog, now: float | None) -> int:
        what, ended = self._what(last.number), self._record(last.number).ended
        latest = max(last.cursor, last.ranks_ended or 0)
        if what == "succeeded":
            return max(latest, ended or 0)
        seen = microseconds(now)
        if seen is not None:
            return max(latest, seen)
        return max(latest, ended or 0, last.last_sign, self._supervision.last_sign)

    def _ended(self, log: AttemptLog, what: str | None, limit: int, now: float | None) -> int:
        """When the attempt's ranks ended, as far as it is known; its limit where they go on."""
        record, incident = self._record(log.number), self.incidents.get(log.number)
        told = microseconds(incident.time) if incident is not None else None
        ended = next((time for time in (log.ranks_ended, record.ended, told) if time is not None), None)
        if what == "succeeded":
            ended = record.ended
        if what == "lost" and log.ranks_ended is None:
            ended = None  # its record was closed by the next launcher, maybe hours later
        if ended is None:
            ended = limit if what is None and now is not None else log.last_sign
        return min(max(ended, log.cursor), limit)

    def _what(self, number: int) -> str | None:
        """How an attempt ended; None where it goes on, or nobody has told."""
        log, incident, outcome = self._logs.get(number), self.incidents.get(number), self._record(number).outcome
        if outcome == "succeeded" or (log is not None and log.exported and outcome is None):
            return "succeeded"
        if log is not None and log.what is not None:
            return log.what
        if incident is not None:
            return incident.what
        if log is not None and log.ranks_ended is not None:
            return outcome or "exception"
        return outcome

    def _record(self, number: int) -> Record:
        return self._records.get(number, Record())

    def _lost_from(self, logs: list[AttemptLog]) -> list[int | None]:
        """For each attempt, the first step that a later one computed again, or would have to."""
        found: list[int | None] = []
        earliest: int | None = None
        last = logs[-1]
        what = self._what(last.number)
        if what != "succeeded" and (what is not None or last.first_step is None):
            # Nothing has gone on from where it stopped yet: what is saved is what will count.
            earliest = newest_step(self._folder.checkpoints) + 1
        for log in reversed(logs):
            found.append(earliest)
            if log.first_step is not None:
                earliest = min(log.first_step, earliest or log.first_step)
        return found[::-1]
