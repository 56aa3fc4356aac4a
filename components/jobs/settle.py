"""When enough was heard of the end of an attempt's ranks to judge it."""

import signal
from collections.abc import Callable, Mapping

from training.errors import EXIT_INTERRUPTED
from training.events import RanksEnded

_FIRST_S = 1.0
"""Ranks of other nodes end right after the first, because it is gone."""

_STACKS_S = 30.0
"""A node whose rank was stopped takes longer to tell of a hang than those that wait for it: for stacks that the
rank does not write itself, and a look at the network."""

_LEAVE_S = 30.0
"""Nodes whose ranks have saved leave by themselves, and the job tells why."""

_PEERS = (-signal.SIGTERM, -signal.SIGABRT)
"""Ends of ranks that another one may be the cause of: NCCL's watchdog aborts."""


def is_settled(
    told: Mapping[int, RanksEnded], num_nodes: int, waited_s: float, lives: Callable[[int], bool]
) -> bool:
    """Whether nothing more is to be waited for.

    Args:
        told: What nodes have said, by node.
        num_nodes: Of the attempt.
        waited_s: Seconds since the first has.
        lives: Whether a node was heard of since then. One that was not may be the cause, and be lost.
    """
    if not told:
        return False
    if any(_leaves(ended) for ended in told.values()):
        return waited_s >= _LEAVE_S
    if len(told) >= num_nodes:
        return True
    if waited_s < _FIRST_S:
        return False
    if any(_is_cause(ended) for ended in told.values()):
        return True
    if waited_s < _STACKS_S and any(ended.what == "hang" for ended in told.values()):
        return False
    return all(lives(node) for node in range(num_nodes) if node not in told)


def _leaves(ended: RanksEnded) -> bool:
    return ended.what == "preempted" or (ended.what is None and ended.exit_code == EXIT_INTERRUPTED)


def _is_cause(ended: RanksEnded) -> bool:
    """Whether this node's ranks ended for a reason of its own."""
    if ended.what == "hang":
        return ended.beat == -1  # else another node's rank may be further behind
    killed = ended.exit_code is not None and ended.exit_code < 0 and ended.exit_code not in _PEERS
    return ended.what is not None or killed
