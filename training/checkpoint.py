"""Sharded checkpoints of the training state, each either whole or absent.

A checkpoint is written to a staging folder by all ranks, sealed with checksums by rank 0, and renamed. Only a
sealed folder is ever loaded, so a save that was killed half-way costs nothing but its time.

    <run>/checkpoints/step-<n>/    torch.distributed.checkpoint shards, .metadata, manifest.json
"""

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from training.errors import UserError
from training.model import weights
from training.store import MANIFEST, about, remove, rename_into_place, seal, verify


def save(
    folder: Path,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    step: int,
    identity: dict[str, str],
    keep: int,
    attempt: int,
) -> Path:
    """Save the training state after `step` steps. Collective: every rank calls it with the same arguments.

    Args:
        folder: The run's checkpoint folder.
        model: The sharded model.
        optimizer: Its optimizer.
        step: Steps done.
        identity: What the state belongs to (model and data fingerprints); compared at the load.
        keep: Newest checkpoints that stay; the older are removed once the new one is in place.
        attempt: Of this run, so that no two attempts ever write to one staging folder.

    Returns:
        The checkpoint's folder.
    """
    target = folder / f"step-{step:08d}"
    staging = folder / f".staging-{attempt}-{target.name}"
    if _is_leader():
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
    state = _state(model, optimizer)
    # Collective, so that all ranks know before any writes, and the checkpoints that are there stay whole.
    check_space(folder, state, f"the checkpoint of step {step}")
    dcp.save(state, checkpoint_id=staging)
    if _is_leader():
        # The global step is all the state there is beside tensors: data order and learning rate follow from it.
        seal(staging, {"step": step, "world_size": dist.get_world_size(), **identity})
        rename_into_place(staging, target)
        for old in checkpoints(folder)[:-keep]:
            remove(old)
    dist.barrier()
    return target


def choose(folder: Path) -> tuple[Path | None, list[str]]:
    """Choose the newest whole checkpoint, and clear away what is newer. Collective; rank 0 looks, for all.

    A damaged one is moved to `damaged-step-<n>`, for people to look at.

    Returns:
        The checkpoint, None if the run has not saved any; and the names of those just found damaged.

    Raises:
        UserError: There were checkpoints, but none is whole.
    """
    answer: list[tuple[str | None, list[str]]] = [_look(folder) if _is_leader() else (None, [])]
    dist.broadcast_object_list(answer, src=0)
    name, damaged = answer[0]
    if name is None and damaged:
        raise UserError(
            f"the checkpoints of this run in {folder} are damaged ({', '.join(damaged)}): restore one, or remove "
            f"{folder} to train from the start"
        )
    return (folder / name if name else None), damaged


def load(
    checkpoint: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, identity: dict[str, str]
) -> int:
    """Load a checkpoint into model and optimizer, at any world size. Collective.

    Returns:
        Steps done.

    Raises:
        UserError: It belongs to another model or data set.
    """
    recorded = about(checkpoint)
    for key, value in identity.items():
        if recorded.get(key) != value:
            raise UserError(
                f"the checkpoint {checkpoint} was made with the {key} {recorded.get(key)}, but this run uses "
                f"{value}: start a run of another name, or go back to that {key}"
            )
    state = _state(model, optimizer)
    dcp.load(state, checkpoint_id=checkpoint)
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=StateDictOptions(strict=True))
    return int(recorded["step"])


def checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return sorted(path.parent for path in folder.glob(f"step-*/{MANIFEST}"))


def _look(folder: Path) -> tuple[str | None, list[str]]:
    damaged = []
    whole = None
    for checkpoint in reversed(checkpoints(folder)):
        if _is_whole(checkpoint):
            whole = checkpoint.name
            break
        target = folder / f"damaged-{checkpoint.name}"
        shutil.rmtree(target, ignore_errors=True)
        checkpoint.rename(target)
        damaged.append(checkpoint.name)
    if whole is None:
        # Also those that an earlier start found: it was told to people, and nothing has been mended since.
        return None, [path.name for path in sorted(folder.glob("damaged-step-*"))]
    for path in [*folder.glob("step-*"), *folder.glob(".staging-*")]:
        if path.name > whole or path.name.startswith("."):
            remove(path)
    return whole, damaged


def _is_whole(checkpoint: Path) -> bool:
    try:
        return not verify(checkpoint)
    except (ValueError, LookupError, TypeError, AttributeError):
        return False  # the manifest itself is damaged


def remove_all(folder: Path) -> None:
    """Remove every checkpoint of a run, also unfinished ones."""
    for checkpoint in checkpoints(folder):
        remove(checkpoint)
    shutil.rmtree(folder, ignore_errors=True)


def check_space(folder: Path, state: dict[str, Any], what: str) -> None:
    """Make sure that what all ranks are about to write fits the disk. Collective.

    Args:
        folder: On that disk; it exists on rank 0.
        state: Nested tensors of this rank.
        what: What is to be written, for the message.

    Raises:
        UserError: It does not fit. Nothing was written.
    """
    tensors = [value for value in tree_leaves(state) if isinstance(value, torch.Tensor)]
    local = [value.to_local() if isinstance(value, DTensor) else value for value in tensors]
    device = local[0].device
    needed = torch.tensor(sum(t.numel() * t.element_size() for t in local), dtype=torch.int64, device=device)
    dist.all_reduce(needed)
    free = torch.tensor(shutil.disk_usage(folder).free if _is_leader() else 0, dtype=torch.int64, device=device)
    dist.broadcast(free, src=0)
    if needed.item() > free.item():
        raise UserError(
            f"{what} needs {needed.item() / 2**30:.2f} GiB, but the disk of {folder} has "
            f"{free.item() / 2**30:.2f} GiB free: free some space or choose another store; a run of the same name "
            "then goes on from its newest checkpoint"
        )


def _state(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": weights(model), "optimizer": get_optimizer_state_dict(model, optimizer)}


def _is_leader() -> bool:
    return dist.get_rank() == 0
