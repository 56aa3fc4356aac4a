"""Which rank's device is slow, judged by how long all take for the same computation."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Straggler:
    """A rank that is slow.

    Attributes:
        rank: Global.
        seconds: That it takes.
        others_s: Median of what the others take.
    """

    rank: int
    seconds: float
    others_s: float


class StragglerDetector:
    """Names a rank that was slow in two windows running, once until it has recovered.

    Slow is a rank that takes more than `ratio` times the others' median, and more than that median and three times
    their median absolute deviation: where all ranks differ much, as on a machine that does other things too, a
    difference tells nothing.

    Args:
        ratio: See `resilience.straggler_ratio`.
    """

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._before: frozenset[int] = frozenset()
        self._told: frozenset[int] = frozenset()

    def judge(self, seconds: Sequence[float]) -> list[Straggler]:
        """Judge a window.

        Args:
            seconds: Of every rank, the mean over the window.

        Returns:
            The ranks to tell people of now.
        """
        others = {rank: [*seconds[:rank], *seconds[rank + 1 :]] for rank in range(len(seconds))}
        slow = frozenset(rank for rank in others if _is_slow(seconds[rank], others[rank], self._ratio))
        fresh = (slow & self._before) - self._told
        self._told = (self._told & slow) | fresh
        self._before = slow
        return [Straggler(rank, seconds[rank], statistics.median(others[rank])) for rank in sorted(fresh)]


def _is_slow(seconds: float, others: Sequence[float], ratio: float) -> bool:
    if not others:
        return False
    median = statistics.median(others)
    spread = statistics.median(abs(other - median) for other in others)
    return seconds > ratio * median and seconds > median + 3 * spread
