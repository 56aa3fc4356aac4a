"""A strip of a run's life: its intervals as pieces that a page can draw, however many they are."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise

from training.ledger import Bucket, Interval

NUM_CELLS = 1000
"""Across the page: a cell is a pixel or less."""

_HAIRLINE = 8
"""Cells."""


@dataclass(frozen=True)
class Piece:
    """A part of a strip in one colour.

    Attributes:
        start: From the left, in cells of `NUM_CELLS`.
        width: Likewise.
        bucket: What most of it was spent on.
        seconds: How long that took.
    """

    start: int
    width: int
    bucket: Bucket
    seconds: float


def pieces(intervals: Iterable[Interval], start: int, length: int) -> list[Piece]:
    """The intervals as a strip, on which a cell has the colour of what it was mostly spent on.

    Args:
        intervals: In the order of time.
        start: Of the strip, in microseconds since the epoch.
        length: Of the whole width, in microseconds.
    """
    cells: list[Counter[Bucket]] = [Counter() for _ in range(NUM_CELLS)]
    for interval in _without_hairlines(intervals, length // NUM_CELLS):
        for cell, time in _cells(interval.start - start, interval.end - start, max(length, NUM_CELLS)):
            cells[cell][interval.bucket] += time
    colours = [cell.most_common(1)[0][0] if cell else None for cell in cells]
    found = []
    for colour, group in groupby(range(NUM_CELLS), key=lambda cell: colours[cell]):
        own = list(group)
        if colour is not None:
            seconds = sum(cells[cell][colour] for cell in own) / 1e6
            found.append(Piece(own[0], len(own), colour, seconds))
    return found


def _without_hairlines(intervals: Iterable[Interval], cell: int) -> Iterator[Interval]:
    """Give a short wait for samples the colour of its step: as hairlines they would tell of nothing but noise."""
    own = list(intervals)
    for interval, after in zip(own, [*own[1:], None], strict=True):
        is_short = (
            interval.bucket == "data_wait"
            and after is not None
            and after.step == interval.step
            and interval.length < min(_HAIRLINE * cell, after.length // 4)
        )
        yield interval._replace(bucket=after.bucket) if is_short and after is not None else interval


def _cells(start: int, end: int, length: int) -> Iterator[tuple[int, int]]:
    """The cells that a time lies in, each with how much of it."""
    first, last = (min(NUM_CELLS - 1, time * NUM_CELLS // length) for time in (start, end))
    if first == last:
        yield first, end - start
        return
    bounds = [start, *(-(-cell * length // NUM_CELLS) for cell in range(first + 1, last + 1)), end]
    for cell, (begin, until) in enumerate(pairwise(bounds), first):
        if until > begin:
            yield cell, until - begin
