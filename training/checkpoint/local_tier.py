"""Checkpoints on the nodes' own disks: fast to write and read, and gone with the node.

Every rank has a folder and a manifest of its own, with its shards as they are in memory. So such a checkpoint
loads only where the same ranks are on the same nodes again; the store has one that loads anywhere.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from training.checkpoint.folders import checkpoints, name_of, staging_of
from training.checkpoint.hashing import hashed_file
from training.checkpoint.manifest import NEEDED, Manifest, about_checkpoint
from training.checkpoint.space import check_local_space
from training.shards import local_part
from training.store import remove, rename_into_place, seal

_FILE = NEEDED["local"]

_FEWEST = 2
"""Of one alone nothing would be left while the next is damaged."""


def rank_folder(run_folder: Path) -> Path:
    """Where this rank's checkpoints are, below the run's folder on the node's disk."""
    return run_folder / f"rank-{dist.get_rank()}"


def check_space_for(state: dict[str, Any], folder: Path, step: int) -> None:
    """Make sure that this node's part of a checkpoint fits its disk, before any of its ranks writes.

    Args:
        state: See `training_state`.
        folder: See `rank_folder`.
        step: Steps done.

    Raises:
        UserError: It does not fit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    check_local_space(folder, state, f"this node's part of the checkpoint of step {step}")


def write_local(state: dict[str, Any], folder: Path, step: int, *, attempt: int, identity: dict[str, str]) -> None:
    """Write this rank's part of a checkpoint, and seal it.

    Args:
        state: See `training_state`.
        folder: See `rank_folder`.
        step: Steps done.
        attempt: Of the run.
        identity: What the state belongs to.
    """
    staging = staging_of(folder, attempt, step)
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        entries: dict[str, dict[str, Any]] = {}
        with hashed_file(staging / _FILE, entries) as file:
            torch.save([_alone(leaf) for leaf in tree_flatten(state)[0]], file)
        about = about_checkpoint(step, dist.get_world_size(), "local", identity)
        # Parts of one save, and not of one before a step was left out, belong together.
        seal(staging, {**about, "ranks_per_node": _ranks_per_node(), "attempt": attempt}, entries)
        rename_into_place(staging, folder / name_of(step))
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def fits_here(manifest: Manifest) -> bool:
    """Whether the checkpoint is of the same number of ranks, as many on each node: each has the same shards."""
    about = manifest.about
    return about.get("world_size") == dist.get_world_size() and about.get("ranks_per_node") == _ranks_per_node()


def open_local(checkpoint: Path, like: dict[str, Any]) -> dict[str, Any]:
    """The state in a checkpoint, in memory only where it is looked at.

    Args:
        checkpoint: Of this rank.
        like: A state of the same structure, which says how tensors are sharded.
    """
    leaves, structure = tree_flatten(like)
    saved = torch.load(checkpoint / _FILE, map_location="cpu", mmap=True, weights_only=True)
    return tree_unflatten([_as(leaf, value) for leaf, value in zip(leaves, saved, strict=True)], structure)


def read_local(checkpoint: Path, state: dict[str, Any]) -> dict[str, Any]:
    """Fill a state's tensors from a checkpoint; the state with its other values."""
    leaves, structure = tree_flatten(state)
    saved = torch.load(checkpoint / _FILE, map_location="cpu", mmap=True, weights_only=True)
    with torch.no_grad():
        for leaf, value in zip(leaves, saved, strict=True):
            if isinstance(leaf, torch.Tensor):
                local_part(leaf).copy_(value)
    filled = [leaf if isinstance(leaf, torch.Tensor) else value for leaf, value in zip(leaves, saved, strict=True)]
    return tree_unflatten(filled, structure)


def retain(folder: Path, keep: int) -> None:
    """Remove this rank's older checkpoints, but two at least."""
    for old in checkpoints(folder)[: -max(keep, _FEWEST)]:
        remove(old)


def _alone(leaf: Any) -> Any:
    """What is saved of a leaf; a tensor without what else is in its memory, and as it is in host memory."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    value = local_part(leaf).detach().cpu()
    return value if value.untyped_storage().nbytes() == value.numel() * value.element_size() else value.clone()


def _as(leaf: Any, value: Any) -> Any:
    if not isinstance(leaf, DTensor):
        return value
    # `from_local` would bring it to the mesh's device.
    return DTensor(value, leaf._spec, requires_grad=False)


def _ranks_per_node() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
