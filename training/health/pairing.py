"""Which nodes measure the network between them, in two rounds, and what their times tell: pure functions.

As in DLRover's node check: in the second round the slowest nodes of the first meet the fastest, so that who was
slow because of its partner is not slow again.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from training.health.blame import Blame

Pair = tuple[int, int]
"""Two nodes, by their numbers."""

Schedule = list[list[Pair]]
"""Pairs that measure at the same time, in turn; no node is in two of one turn."""


@dataclass(frozen=True)
class PairTime:
    """What a pair measured.

    Attributes:
        nodes: The two.
        seconds: Of an all-reduce between them, of the slowest rank; infinite, if it failed or took too long.
    """

    nodes: Pair
    seconds: float


def first_round(num_nodes: int) -> Schedule:
    """Every node with its neighbour; of an odd number, the last one meets the first in a turn of its own."""
    if num_nodes < 2:
        return []
    if num_nodes == 3:
        # With two pairs, nobody could tell whether the node that is in both is at fault.
        return [[(0, 1)], [(1, 2)], [(0, 2)]]
    pairs = [(node, node + 1) for node in range(0, num_nodes - 1, 2)]
    return [pairs, [(0, num_nodes - 1)]] if num_nodes % 2 else [pairs]


def second_round(num_nodes: int, first: Sequence[PairTime]) -> Schedule:
    """The fastest node of the first round with the slowest, the second with the second slowest, and so on."""
    if num_nodes <= 3:
        return first_round(num_nodes)
    times = _by_node(first)
    order = sorted(range(num_nodes), key=lambda node: (times[node], node))
    pairs = [_pair(order[i], order[-1 - i]) for i in range(num_nodes // 2)]
    if num_nodes % 2 == 0:
        return [pairs]
    return [pairs, [_pair(order[0], order[num_nodes // 2])]]


def judge_pairs(
    first: Sequence[PairTime], second: Sequence[PairTime], hosts: Sequence[str], ratio: float
) -> list[Blame]:
    """Who fell short in both rounds.

    Args:
        first: Of the first round.
        second: Of the second.
        hosts: The nodes' machines, by number.
        ratio: A node is slow whose best pair took more than so many times the median of the pairs without it.

    Returns:
        Nodes whose pairs failed in both rounds are faulty, those that were slow in both are stragglers. Of two
        nodes alone it cannot be told which is at fault, so that a failure is their link's.
    """
    if len(hosts) == 2:
        if all(math.isinf(pair.seconds) for pair in [*first, *second]) and first:
            return [Blame("link", (), f"no all-reduce came through between {hosts[0]} and {hosts[1]}")]
        return []
    blames = []
    for node, host in enumerate(hosts):
        rounds = [(_best(pairs, node), _median_without(pairs, node)) for pairs in (first, second)]
        if not rounds[0][0] or not rounds[1][0]:
            continue
        if all(math.isinf(best) and math.isfinite(others) for best, others in rounds):
            blames.append(Blame("faulty", (host,), f"no all-reduce of {host} came through, with either partner"))
        elif all(best > ratio * others for best, others in rounds):
            factor = min(best / others for best, others in rounds)
            blames.append(
                Blame(
                    "straggler", (host,), f"all-reduces with {host} take {factor:.1f} times as long as the others'"
                )
            )
    return blames


def _best(pairs: Sequence[PairTime], node: int) -> float:
    """Seconds of a node's fastest pair: the slower ones may be its partners' fault; 0 if it had none."""
    return min((pair.seconds for pair in pairs if node in pair.nodes), default=0.0)


def _median_without(pairs: Sequence[PairTime], node: int) -> float:
    others = [pair.seconds for pair in pairs if node not in pair.nodes]
    return statistics.median_low(others) if others else math.inf


def _by_node(pairs: Sequence[PairTime]) -> dict[int, float]:
    nodes = {node for pair in pairs for node in pair.nodes}
    return {node: _best(pairs, node) for node in nodes}


def _pair(a: int, b: int) -> Pair:
    return (min(a, b), max(a, b))
