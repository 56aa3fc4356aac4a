"""With how many nodes an attempt goes on when some were lost."""

from training.config import RunConfig, check_world_size


def smaller(config: RunConfig, num_nodes: int, procs_per_node: int) -> int | None:
    """The greatest number of nodes below the present one with which the run can go on; None if there is none.

    The global batch stays the same, so its samples must be shared evenly by the ranks that are left.

    Args:
        config: The run's.
        num_nodes: Of the present attempt.
        procs_per_node: Ranks on each node.
    """
    fewest = config.resilience.min_nodes
    if fewest is None:
        return None
    return next((n for n in range(num_nodes - 1, fewest - 1, -1) if _fits(config, n * procs_per_node)), None)


def _fits(config: RunConfig, world_size: int) -> bool:
    try:
        check_world_size(config, world_size)
    except ValueError:
        return False
    return True
