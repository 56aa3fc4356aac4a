"""Whom the deep checks find at fault."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Fault = Literal["faulty", "straggler", "link", "disagreement"]


@dataclass(frozen=True)
class Blame:
    """Something that fell short.

    Attributes:
        fault: `faulty` and `straggler` name a machine; of a `link` or a `disagreement` it cannot be told which of
            the two is at fault.
        hosts: Machines that are not to be used.
        text: For people.
    """

    fault: Fault
    hosts: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Burn:
    """What one rank computed.

    Attributes:
        rank: Global.
        host: Its machine.
        device: Kind of device with all that decides how it rounds: only the same kinds are compared.
        results: A digest for each product, every one that came out, so more than one where the device disagrees
            with itself.
        seconds: Of all products.
    """

    rank: int
    host: str
    device: str
    results: tuple[tuple[int, ...], ...]
    seconds: float

    @property
    def is_steady(self) -> bool:
        """Whether the same product gave the same bits every time."""
        return all(len(digests) == 1 for digests in self.results)


def judge_burns(burns: Sequence[Burn], ratio: float) -> list[Blame]:
    """Compare ranks that computed the same.

    Args:
        burns: Of all ranks.
        ratio: A rank is slow that takes more than so many times the median of the others of its kind.

    Returns:
        A rank that differs from most, or from itself, is faulty. Where no result is that of most, it cannot be
        told who is right.
    """
    blames = [
        Blame("faulty", (burn.host,), f"rank {burn.rank} on {burn.host} got different bits from the same product")
        for burn in burns
        if not burn.is_steady
    ]
    for device in sorted({burn.device for burn in burns}):
        same = [burn for burn in burns if burn.device == device]
        blames += _differing([burn for burn in same if burn.is_steady])
        blames += _slow(same, ratio)
    return blames


def _differing(burns: list[Burn]) -> list[Blame]:
    counts = Counter(burn.results for burn in burns)
    if len(counts) <= 1:
        return []
    usual, count = counts.most_common(1)[0]
    if 2 * count <= len(burns):
        ranks = ", ".join(str(burn.rank) for burn in burns)
        text = (
            f"ranks {ranks} computed the same with different bits, and there are too few to tell which are right"
        )
        return [Blame("disagreement", (), text)]
    return [
        Blame("faulty", (burn.host,), f"rank {burn.rank} on {burn.host} computed other bits than {count} others")
        for burn in burns
        if burn.results != usual
    ]


def _slow(burns: list[Burn], ratio: float) -> list[Blame]:
    blames = []
    for burn in burns:
        others = [other.seconds for other in burns if other is not burn]
        if others and burn.seconds > ratio * statistics.median(others):
            factor = burn.seconds / statistics.median(others)
            text = f"rank {burn.rank} on {burn.host} computes {factor:.1f} times as long as the others"
            blames.append(Blame("straggler", (burn.host,), text))
    return blames
