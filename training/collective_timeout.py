"""How long a rank waits in a collective for the others."""

from datetime import timedelta

from training.config.resilience import ResilienceConfig

_LEAST_S = 600.0

_MARGIN_S = 60.0
"""For the node to take the stacks of its ranks, and kill them."""

_NO_LIMIT = timedelta(days=7)


def collective_timeout(limits: ResilienceConfig) -> timedelta:
    """More than a rank may take for any part of its work.

    The node that watches the ranks tells which of them hangs, and where; a collective that breaks off tells only
    that one did, and would end a run of which one rank may take its time: in its first step, or a save.
    """
    if limits.stall_timeout_s is None:
        return _NO_LIMIT
    return timedelta(seconds=max(_LEAST_S, limits.hang_timeout_s or 0.0, limits.stall_timeout_s) + _MARGIN_S)
