"""Whether what is about to be written fits the disk."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from training.checkpoint.folders import checkpoints
from training.checkpoint.groups import together
from training.errors import UserError
from training.shards import local_part


def check_space(folder: Path, state: dict[str, Any], what: str, group: dist.ProcessGroup | None = None) -> None:
    """Make sure that what all ranks are about to write fits the disk. Collective.

    Args:
        folder: On that disk; it exists on rank 0.
        state: Nested tensors of this rank.
        what: What is to be written, for the message.
        group: Of all ranks.

    Raises:
        UserError: It does not fit. Nothing was written.
    """
    needed = torch.tensor(_num_bytes(state))
    dist.all_reduce(needed, group=group)
    free = torch.tensor(0)

    def look() -> None:
        if dist.get_rank() == 0:
            free.fill_(shutil.disk_usage(folder).free)

    together(look, group)
    dist.broadcast(free, src=0, group=group)
    _check(int(needed.item()), int(free.item()), folder, what, "choose another store")


def check_local_space(folder: Path, state: dict[str, Any], what: str) -> None:
    """Make sure that what the ranks of this node are about to write fits its own disk.

    Args:
        folder: On that disk; it exists.
        state: Nested tensors of this rank; those of the node's other ranks are as large.
        what: What is to be written, for the message.

    Raises:
        UserError: It does not fit. Nothing was written.
    """
    needed = _num_bytes(state) * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    _check(needed, shutil.disk_usage(folder).free, folder, what, "choose another checkpoint.local_folder")


def why_it_fills_up(newest: Path, keep: int) -> str:
    """Why the disk will be full before any checkpoint is removed, for people; empty if it has room for all.

    Args:
        newest: A checkpoint of the run; those to come are as large.
        keep: How many stay. One more is there while it is verified.
    """
    folder = newest.parent
    size = sum(path.stat().st_size for path in newest.iterdir())
    to_come = keep + 1 - len(checkpoints(folder))
    fit = shutil.disk_usage(folder).free // max(1, size)
    if to_come <= fit:
        return ""
    return (
        f"the disk of {folder} has room for {fit} more checkpoint(s) of {size / 2**30:.2f} GiB, but up to "
        f"{keep + 1} are there at a time (checkpoint.keep is {keep}, and one is removed only when a newer one was "
        "verified): free some space, or the run will end when the disk is full"
    )


def _num_bytes(state: dict[str, Any]) -> int:
    local = [local_part(value) for value in tree_leaves(state) if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def _check(needed: int, free: int, folder: Path, what: str, choice: str) -> None:
    if needed > free:
        raise UserError(
            f"{what} needs {needed / 2**30:.2f} GiB, but the disk of {folder} has {free / 2**30:.2f} GiB free: "
            f"free some space or {choice}; a run of the same name then goes on from its newest checkpoint"
        )
