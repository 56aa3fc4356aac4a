"""Checkpoints in the store, which load at any world size."""

import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from training.checkpoint.folders import name_of, staging_of
from training.checkpoint.groups import together
from training.checkpoint.hashing import HashingFiles
from training.checkpoint.manifest import about_checkpoint
from training.checkpoint.space import check_space
from training.dcp_errors import plain_errors
from training.store import rename_into_place, seal


def write_to_store(
    state: dict[str, Any],
    folder: Path,
    step: int,
    *,
    attempt: int,
    identity: dict[str, str],
    group: dist.ProcessGroup,
) -> Path:
    """Write a checkpoint, and seal it. Collective; it is there on all ranks, or all raise.

    Args:
        state: See `training_state`; its tensors do not change meanwhile.
        folder: Of the run's checkpoints.
        step: Steps done.
        attempt: Of the run.
        identity: What the state belongs to.
        group: Of all ranks; nothing else uses it meanwhile.

    Returns:
        The checkpoint.

    Raises:
        UserError: It does not fit the disk; nothing was written.
    """
    staging = staging_of(folder, attempt, step)
    try:
        return _write(state, folder, step, staging, identity, group)
    except BaseException:
        # No rank writes any more; on a disk that is full, the rest is room for the next.
        if dist.get_rank() == 0:
            shutil.rmtree(staging, ignore_errors=True)
        raise


def _write(
    state: dict[str, Any],
    folder: Path,
    step: int,
    staging: Path,
    identity: dict[str, str],
    group: dist.ProcessGroup,
) -> Path:
    is_leader, target = dist.get_rank() == 0, folder / name_of(step)

    def begin() -> None:
        if is_leader:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)

    together(begin, group)
    check_space(folder, state, f"the checkpoint of step {step}", group)
    files = HashingFiles()
    writer = dcp.FileSystemWriter(staging)
    writer.fs = files
    with plain_errors():
        dcp.save(state, storage_writer=writer, process_group=group)
    entries: list[dict[str, dict[str, Any]]] | None = [{}] * dist.get_world_size() if is_leader else None
    dist.gather_object(files.entries, entries, dst=0, group=group)

    def commit() -> None:
        if entries is not None:
            # The global step is all the state there is beside tensors: data order and learning rate follow.
            about = about_checkpoint(step, dist.get_world_size(), "store", identity)
            seal(staging, about, {name: entry for each in entries for name, entry in each.items()})
            rename_into_place(staging, target)

    together(commit, group)
    return target
