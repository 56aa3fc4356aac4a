"""Tells when a rank hangs: it has begun a part of its work and does not come to the next."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from training.guard.beat import STEP_PARTS, Beat


@dataclass(frozen=True)
class Silence:
    """A rank of which nothing was heard for too long.

    Attributes:
        rank: Global.
        part: What it has begun; empty, if it has never said anything.
        step: Steps done.
        number: Of its last beat; 0 if there is none.
        seconds: How long it has been silent.
        limit: Seconds that this part may take.
    """

    rank: int
    part: str
    step: int
    number: int
    seconds: float
    limit: float


class HangDetector:
    """Watches the beats of a node's ranks.

    A beat counts by whether it changed, seen by the watcher's own clock, so no clock of another process matters.

    Args:
        ranks: Global, of this node; each is taken to begin now.
        step_s: Most seconds for a part of a step; None: no limit.
        other_s: Most seconds for any other part; None: no limit.
        now: Seconds of a clock that never goes back.
    """

    def __init__(self, ranks: Iterable[int], step_s: float | None, other_s: float | None, now: float) -> None:
        self._step_s = step_s if step_s is not None else other_s
        self._other_s = other_s
        self._changed: dict[int, tuple[Beat | None, float]] = dict.fromkeys(ranks, (None, now))

    def check(self, beats: Iterable[Beat], now: float) -> list[Silence]:
        """Take in the newest beats; the ranks that are silent for too long, those that are behind first."""
        for beat in beats:
            if beat.rank in self._changed and beat != self._changed[beat.rank][0]:
                self._changed[beat.rank] = (beat, now)
        silent = []
        for rank, (last, since) in self._changed.items():
            part, step, number = (last.part, last.step, last.number) if last else ("", 0, 0)
            limit = self._step_s if part in STEP_PARTS else self._other_s
            # A rank that waits for the others at its end has done its part.
            if limit is not None and part != "wait" and now - since > limit:
                silent.append(Silence(rank, part, step, number, now - since, limit))
        return sorted(silent, key=lambda silence: (silence.number, silence.rank))


def suspect(silent: list[Silence], is_stopped: Callable[[int], bool]) -> Silence:
    """The one that holds up the others: a process that is stopped, else the one that is behind."""
    return next((silence for silence in silent if is_stopped(silence.rank)), silent[0])


def describe(silence: Silence) -> str:
    """What a silence is, for people."""
    where = f"in '{silence.part}' of step {silence.step + 1}" if silence.part in STEP_PARTS else silence.part
    option = "hang_timeout_s" if silence.part in STEP_PARTS else "stall_timeout_s"
    return (
        f"rank {silence.rank} was silent for {silence.seconds:.0f} s ({where or 'before its first word'}), and "
        f"resilience.{option} is {silence.limit:g}"
    )
