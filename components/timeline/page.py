"""The page: a row for each attempt, where the time went, what failed and what was done about it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from components.pages import page_environment
from components.timeline.strip import NUM_CELLS, Piece, pieces
from components.timeline.words import ACTIONS, clock, steps, trouble_line
from training.events import Alert
from training.ledger import MEANINGS, Interval, Ledger, Totals
from training.ledger.sentence import show_seconds
from training.run_folder import RunFolder
from training.store import write_atomically

_MOST_ALERTS = 200
"""Alerts that are listed; a link that is slow for days tells of it often."""

_MOST_WORDS = 600


@dataclass(frozen=True)
class Mark:
    """Something that happened at one moment.

    Attributes:
        place: From the left of its strip, in percent.
        kind: `incident` or `alert`.
        text: In one line.
    """

    place: float
    kind: str
    text: str


@dataclass(frozen=True)
class Row:
    """An attempt on the page.

    Attributes:
        attempt: Its number.
        started: When, for people.
        length: How long it took, until the next began, for people.
        pieces: Its strip.
        marks: On the strip.
        line: How it failed, in one line; empty if it did not.
    """

    attempt: int
    started: str
    length: str
    pieces: list[Piece]
    marks: list[Mark]
    line: str


def write_timeline(folder: RunFolder) -> Path:
    """Write `<run>/timeline.html` as the run stands; returns its path."""
    write_atomically(folder.timeline, render_timeline(Ledger.of(folder)))
    return folder.timeline


def render_timeline(ledger: Ledger) -> str:
    """Render the page: one HTML file without scripts or requests, the same for the same ledger.

    Names and last words are untrusted: all of it is escaped.
    """
    environment = page_environment(Path(__file__).parent)
    environment.filters.update(
        seconds=show_seconds, percent=_percent, clock=clock, steps=steps, words=_shortened, named=_named
    )
    totals = ledger.totals
    return environment.get_template("timeline.html.j2").render(
        ledger=ledger,
        totals=totals,
        num_cells=NUM_CELLS,
        whole=_whole(ledger, totals) if totals is not None else None,
        rows=_rows(ledger),
        buckets=[(bucket, MEANINGS[bucket], seconds) for bucket, seconds in ledger.seconds.items()],
        actions=ACTIONS,
        alerts=ledger.alerts[-_MOST_ALERTS:],
        num_more_alerts=max(0, len(ledger.alerts) - _MOST_ALERTS),
    )


def _whole(ledger: Ledger, totals: Totals) -> Row:
    length = totals.end - totals.start
    marks = list(_marks(ledger, ledger.intervals, totals.start, length))
    strip = pieces(ledger.intervals, totals.start, length)
    return Row(0, clock(totals.start / 1e6), show_seconds(totals.wall_s), strip, marks, "")


def _rows(ledger: Ledger) -> list[Row]:
    by_attempt = [
        (number, list(intervals)) for number, intervals in groupby(ledger.intervals, key=lambda each: each.attempt)
    ]
    # All begin at the left, so that what attempts have in common is below each other.
    longest = max((own[-1].end - own[0].start for _, own in by_attempt), default=1)
    lines = {trouble.attempt: trouble_line(trouble) for trouble in ledger.incidents}
    rows = []
    for number, own in by_attempt:
        start = own[0].start
        rows.append(
            Row(
                attempt=number,
                started=clock(start / 1e6),
                length=show_seconds((own[-1].end - start) / 1e6),
                pieces=pieces(own, start, longest),
                marks=list(_marks(ledger, own, start, longest)),
                line=lines.get(number, ""),
            )
        )
    return rows


def _marks(ledger: Ledger, own: tuple[Interval, ...] | list[Interval], start: int, length: int) -> Iterator[Mark]:
    numbers = {interval.attempt for interval in own}
    end = own[-1].end if own else start

    def place(seconds: float) -> float:
        at = min(max(round(seconds * 1e6), start), end)
        return 100 * (at - start) / max(1, length)

    for alert in ledger.alerts[-_MOST_ALERTS:]:
        if alert.attempt in numbers:
            yield Mark(place(alert.time), "alert", f"{clock(alert.time)} {alert_line(alert)}")
    for trouble in ledger.incidents:
        if trouble.attempt in numbers:
            yield Mark(place(trouble.time), "incident", f"{clock(trouble.time)} {trouble_line(trouble)}")


def alert_line(alert: Alert) -> str:
    """An alert in one line."""
    return f"{_named(alert.what)}{f' on {alert.host}' if alert.host else ''}: {alert.text}"


def _named(word: str) -> str:
    return word.replace("_", " ")


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def _shortened(text: str) -> str:
    """The end of what was said, where it is long: there stands what was raised."""
    return text if len(text) <= _MOST_WORDS else f"…{text[-_MOST_WORDS:]}"
