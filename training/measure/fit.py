"""Whether a whole model fits each rank, or has to be sharded over all."""

import contextlib
import os
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

_SHARE = 0.75
"""Of the memory that is left for a model, what its weights may take: the rest is for activations, logits and the
cache of answers."""


def is_to_shard(choice: str, num_bytes: int, device: torch.device) -> bool:
    """Whether a model is to be sharded; the same on every rank. Collective.

    Args:
        choice: `evaluation.sharding`.
        num_bytes: Of the whole model's weights.
        device: Where this rank computes.
    """
    if choice != "auto":
        return choice == "full"
    fits = torch.tensor(int(num_bytes <= _SHARE * _free_bytes(device)))
    dist.all_reduce(fits, op=dist.ReduceOp.MIN)
    return dist.get_world_size() > 1 and not fits.item()


def _free_bytes(device: torch.device) -> int:
    """Memory for one rank's model: of its accelerator, or its share of what is left of the host's."""
    if device.type == "cpu":
        return _free_host_bytes() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    free, _ = torch.accelerator.get_memory_info(device)
    return int(free)


def _free_host_bytes() -> int:
    """What is left of the memory of the machine, or of this container where that is less."""
    free = int(psutil.virtual_memory().available)
    # Not a number where there is no limit, and not there outside of a container.
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        free = min(free, max(0, limit - used))
    return free
