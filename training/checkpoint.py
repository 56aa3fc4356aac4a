"""Sharded checkpoints of the training state, each either whole or absent.

A checkpoint is written to a staging folder by all ranks, sealed with checksums by rank 0, and renamed. Only a
sealed folder is ever loaded, so a save that was killed half-way costs nothing but its time. By default a save runs
beside the training: forward and backward passes only read the state, so a thread copies it to host memory
meanwhile, and the next optimizer step waits for the copy, not for the disk.

    <run>/checkpoints/step-<n>/    torch.distributed.checkpoint shards, .metadata, manifest.json
"""

import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from training.config import CheckpointConfig
from training.device import use_device
from training.errors import UserError
from training.model import trainable_weights
from training.shards import local_part
from training.store import MANIFEST, about, remove, rename_into_place, seal, verify

_WRITE_TIMEOUT = timedelta(hours=1)
"""How long a rank waits for the others to write their shards: storage can be slow, and nothing else waits."""


class Checkpointer:
    """Saves the training state of one attempt, by default while training goes on.

    Args:
        folder: The run's checkpoint folder.
        model: The sharded model.
        optimizer: Its optimizer.
        identity: What the state belongs to (model and data fingerprints); compared at the load.
        config: Whether saves are asynchronous, and how many checkpoints stay.
        attempt: Of this run, so that no two attempts ever write to one staging folder.
        on_written: Called on every rank, from another thread, with the seconds that a save took to write.
        on_failed: Called with what went wrong with a save in the background, once the next is to be made.
    """

    def __init__(
        self,
        folder: Path,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        identity: dict[str, str],
        config: CheckpointConfig,
        attempt: int,
        on_written: Callable[[float], None] = lambda seconds: None,
        on_failed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self.folder = folder
        self._model = model
        self._optimizer = optimizer
        self._identity = identity
        self._config = config
        self._attempt = attempt
        self._on_written = on_written
        self._on_failed = on_failed
        # A group of its own: its collectives run beside those of the training.
        self._group = dist.new_group(backend="gloo", timeout=_WRITE_TIMEOUT)
        self._device = local_part(next(model.parameters())).device
        self._writer = ThreadPoolExecutor(1, "checkpoint", use_device, (self._device,))
        self._pending: Future[None] | None = None
        self._copied = threading.Event()
        self._copied.set()

    def save(self, step: int, *, block: bool = False) -> None:
        """Save the state after `step` steps. Collective: every rank calls it with the same arguments.

        Returns at once: the state is copied to host memory, and written from there, while training goes on. Only
        the next update of the state has to wait for the copy, see `wait_for_copy`. A save waits for the one before
        it.

        Args:
            step: Steps done.
            block: Return when the checkpoint is in its place, and copy nothing.

        Raises:
            UserError: It does not fit the disk.
            Exception: The save before it failed, and so does this one.
        """
        failure = self._failure_of_pending()
        # All have to know, as they go on together. Rank 0 may be sealing the last one still, for longer than other
        # collectives may take.
        failed = torch.tensor(int(failure is not None))
        dist.all_reduce(failed, group=self._group)
        staging = self.folder / f".staging-{self._attempt}-{_name(step)}"
        if _is_leader():
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
        state = training_state(self._model, self._optimizer)
        # Collective, so that all ranks know before any writes, and the checkpoints that are there stay whole.
        check_space(self.folder, state, f"the checkpoint of step {step}")
        if failure is not None:
            # The state is whole all the same, and what it fails of may pass: this save is tried, and at once.
            self._on_failed(failure)
        if block or failed or not self._config.asynchronous:
            self._write(state, staging, step)
            self.barrier()
            return
        self._copied.clear()

        def copy_and_write() -> None:
            stager = DefaultStager(_staging_options())
            try:
                copy = stager.stage(state)
            finally:
                self._copied.set()
            self._write(copy, staging, step)
            stager.close()

        self._pending = self._writer.submit(copy_and_write)

    def wait_for_copy(self) -> None:
        """Wait until the state may be changed; between two updates it only is read."""
        self._copied.wait()

    def wait(self) -> None:
        """Wait until the save that is going on, if any, is done; raises what went wrong with it."""
        if (failure := self._failure_of_pending()) is not None:
            raise failure

    def barrier(self) -> None:
        """Wait for all ranks, as long as writing and sealing may take. Collective."""
        dist.barrier(group=self._group)

    def _failure_of_pending(self) -> Exception | None:
        pending, self._pending = self._pending, None
        try:
            if pending is not None:
                pending.result()
        except Exception as error:
            return error
        return None

    def _write(self, state: dict[str, Any], staging: Path, step: int) -> None:
        started = time.monotonic()
        dcp.save(state, checkpoint_id=staging, process_group=self._group)
        if _is_leader():
            # The global step is all the state there is beside tensors: data order and learning rate follow.
            seal(staging, {"step": step, "world_size": dist.get_world_size(), **self._identity})
            rename_into_place(staging, self.folder / _name(step))
            for old in checkpoints(self.folder)[: -self._config.keep]:
                remove(old)
        self._on_written(time.monotonic() - started)


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
    state = training_state(model, optimizer)
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
    for torn in folder.glob(".staging-*"):
        remove(torn)
    if whole is None:
        # Also those that an earlier start found: it was told to people, and nothing has been mended since.
        return None, [path.name for path in sorted(folder.glob("damaged-step-*"))]
    for path in folder.glob("step-*"):
        if path.name > whole:
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
    local = [local_part(value) for value in tensors]
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


def training_state(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What a checkpoint holds: the trained weights and the optimizer's state. Frozen weights are in the store."""
    return {"model": trainable_weights(model), "optimizer": get_optimizer_state_dict(model, optimizer)}


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _staging_options() -> StagingOptions:
    accelerated = torch.accelerator.is_available()
    return StagingOptions(
        use_pinned_memory=torch.cuda.is_available(),
        use_shared_memory=False,
        use_async_staging=False,
        use_non_blocking_copy=accelerated,
    )


def _is_leader() -> bool:
    return dist.get_rank() == 0
