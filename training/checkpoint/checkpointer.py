"""Saving the training state, by default while training goes on."""

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from training.checkpoint import folders, local_tier
from training.checkpoint.advice import IntervalAdvice
from training.checkpoint.background import Background
from training.checkpoint.groups import any_rank, disk_group, share_error, together
from training.checkpoint.space import why_it_fills_up
from training.checkpoint.state import HostCopy, training_state
from training.checkpoint.store_tier import write_to_store
from training.checkpoint.verifier import Verifier
from training.config import CheckpointConfig
from training.device import use_device
from training.events import CHECKPOINT_WRITE, LOCAL, Alert, Event, Note, Span
from training.patience import StorageError
from training.shards import local_part

_Write = Callable[[dict[str, Any], int], None]

_PATIENCE_S = 15.0
"""How long training waits for the save before, where the next falls due already; then the next is left out."""


class StorageHungError(StorageError):
    """A disk did not answer in time."""


class Checkpointer:
    """Saves the training state of one attempt.

    Everything that touches a disk happens in threads, since a disk may hang: no step waits for one longer than a
    few seconds.

    Args:
        folder: The run's checkpoints in the store.
        model: The sharded model.
        optimizer: Its optimizer.
        identity: What the state belongs to (model and data fingerprints); compared at the load.
        config: When a save is hung, how many checkpoints stay, and whether saves are asynchronous.
        attempt: Of this run, so that no two attempts ever write to one staging folder.
        tell: Called from any thread with events: how long saves took to write, and what went wrong.
        local: The run's folder on the node's own disk; see `checkpoint.local_folder`.
        events: The run's events, whose incidents say how often it should save; None: nothing is suggested.
    """

    def __init__(
        self,
        folder: Path,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        identity: dict[str, str],
        config: CheckpointConfig,
        attempt: int,
        tell: Callable[[Event], None] = lambda event: None,
        local: Path | None = None,
        events: Path | None = None,
    ) -> None:
        self.folder = folder
        self._model = model
        self._optimizer = optimizer
        self._identity = identity
        self._config = config
        self._attempt = attempt
        self._tell = tell
        self._local = local_tier.rank_folder(local) if local is not None else None
        self._is_leader = dist.get_rank() == 0
        self._advice = IntervalAdvice(events) if events is not None and self._is_leader else None
        # Groups of their own, whose collectives run beside those of the training and of each other.
        self._group, self._store_group = disk_group(), disk_group()
        self._verifier = Verifier(
            folder,
            config.keep,
            config.timeout_s,
            self._warn_of_damage,
            self._warn_of_slow_reading,
            self._tell_return,
        )
        self._store = self._background("checkpoint")
        self._front = self._store if local is None else self._background("checkpoint-local")
        self._local_group = self._store_group if local is None else disk_group()
        self._copied = threading.Event()
        self._copied.set()
        # What the nodes alone have is lost with one of them.
        self._is_wanted = self._local is not None and (
            folders.newest_step(self._local) > folders.newest_step(folder)
        )
        self._has_left_out = False
        self._has_looked_at_space = False
        self._like: dict[str, Any] = {}
        self._on_nodes = 0
        # The first rank's answer: another host may still list what was just removed.
        newest = [folders.newest_step(folder) if self._is_leader else 0]
        dist.broadcast_object_list(newest, src=0, group=self._group)
        self._uploaded = newest[0]

    def save(self, step: int, *, block: bool = False) -> bool:
        """Save the state after `step` steps. Collective: every rank calls it with the same arguments.

        Returns at once: the state is copied to host memory, and written from there, while training goes on. Only
        the next update of the state has to wait for the copy, see `wait_for_copy`. A save waits for the one before
        it, but not long: then it is left out.

        Args:
            step: Steps done.
            block: Return when the checkpoint is in the store, and copy nothing.

        Returns:
            Whether the save was made, or begun.

        Raises:
            UserError: It does not fit the disk.
            StorageHungError: With `block`, the disk does not answer within `checkpoint.timeout_s`.
            Exception: The save before it failed, and so does this one.
        """
        started = time.monotonic()
        limit = self._config.timeout_s
        # Once one was left out, the next is made as soon as it can be, see `is_wanted`.
        patience = 0.0 if self._has_left_out else min(_PATIENCE_S, limit / 2)
        # The last one is to be in the store, where it may be on its way to already.
        ready = self._front.wait(limit if block else patience) and (not block or self._store.wait(limit))
        has_failed = self._store.has_failed or self._front.has_failed
        # All have to know, as they go on together.
        is_new = step != self._uploaded or self._is_wanted
        busy, failed, is_new = any_rank(self._group, not ready, has_failed, is_new)
        if busy:
            if block:
                raise StorageHungError(self._no_answer(f"the save before that of step {step}"))
            self._leave_out(step)
            return False
        if not (failed or is_new):
            return True  # it was saved before a stop came in the step after it
        self._is_wanted = False
        if (unverified := self._verifier.take_failure()) is not None and self._is_leader:
            self._warn(f"a checkpoint was not verified, so older ones stay: {unverified}")
        if failed:
            # The state is whole all the same, and what it fails of may pass: this save is tried, and at once.
            for background in {self._store, self._front}:
                self._warn_of_failure(background.take_failure())
        self._like = state = training_state(self._model, self._optimizer)
        write = self._write if self._local is None else self._write_local
        if block or failed:
            self._save_now(self._store, self._write, state, step)
        elif not self._config.asynchronous:
            self._save_now(self._front, write, state, step)
        else:
            self._begin(write, state, step)
        self._has_left_out = False
        if self._advice is not None:
            self._advice.saved(step, started)
        return True

    @property
    def is_wanted(self) -> bool:
        """On rank 0: whether a save should be made before the next is due, and can be.

        One was left out, or found damaged.
        """
        return self._is_wanted and self._front.wait(0)

    def wait_for_copy(self) -> None:
        """Wait until the state may be changed; between two updates it only is read."""
        started = time.monotonic()
        self._copied.wait()
        if self._advice is not None:
            self._advice.held_up(time.monotonic() - started)

    def wait(self) -> None:
        """Wait until the save that is going on, if any, is done; raises what went wrong with it."""
        for background in (self._front, self._store):
            if not background.wait(self._config.timeout_s):
                raise StorageHungError(self._no_answer("the last save"))
            if (failure := background.take_failure()) is not None:
                raise failure

    def barrier(self) -> None:
        """Wait for all ranks, as long as writing and sealing may take. Collective."""
        dist.barrier(group=self._group)

    def close(self, *, finished: bool) -> None:
        """End what goes on in the background, after the last save. Collective.

        Args:
            finished: Whether the run is: then nothing is needed of the nodes' own disks, and checkpoints that stay
                are verified.
        """
        self._verifier.close(finish=finished and self._config.keep_after_finish)
        if finished and self._local is not None:
            shutil.rmtree(self._local, ignore_errors=True)

    def _save_now(self, background: Background, write: _Write, state: dict[str, Any], step: int) -> None:
        """Save, and raise on all ranks what went wrong with it on one."""
        done = background.submit(f"the save of step {step}", lambda: write(state, step))
        hung = not background.wait(self._config.timeout_s)
        if any_rank(self._group, hung)[0]:
            raise StorageHungError(self._no_answer(f"the save of step {step}"))
        error = done.exception()
        earlier = background.take_failure()
        if earlier is not error:
            self._warn_of_failure(earlier)
        share_error(error, self._group)

    def _begin(self, write: _Write, state: dict[str, Any], step: int) -> None:
        self._copied.clear()
        copies: list[HostCopy] = []
        copied: dict[str, Any] = {}

        def copy() -> None:
            try:
                copies.append(HostCopy())
                copied.update(copies[0].of(state))
            finally:
                self._copied.set()

        def copy_and_write() -> None:
            try:
                # Memory may be short on one rank alone, and the others would wait for it in the write.
                together(copy, self._local_group)
                write(copied, step)
            finally:
                for each in copies:
                    each.close()

        self._front.submit(f"the save of step {step}", copy_and_write)

    def _write(self, state: dict[str, Any], step: int) -> None:
        started = time.monotonic()
        checkpoint = write_to_store(
            state,
            self.folder,
            step,
            attempt=self._attempt,
            identity=self._identity,
            group=self._store_group,
        )
        self._uploaded = step
        # Before what is done on one rank alone: every rank has to submit it.
        self._verifier.verify_newest()
        self._warn_of_space(checkpoint)
        self._written(step, time.monotonic() - started, "")

    def _write_local(self, state: dict[str, Any], step: int) -> None:
        assert self._local is not None
        mine, started = self._local, time.monotonic()
        write = partial(local_tier.write_local, state, mine, step, attempt=self._attempt, identity=self._identity)
        # All look before any writes: what one has written is room that another would miss.
        together(lambda: local_tier.check_space_for(state, mine, step), self._local_group)
        together(write, self._local_group)
        self._on_nodes = step
        # Before what may fail on one rank alone: every rank has to submit it.
        self._store.submit("the copy of a checkpoint to the store", self._upload)
        local_tier.retain(mine, self._config.keep)
        self._written(step, time.monotonic() - started, LOCAL)

    def _upload(self) -> None:
        """Copy the newest checkpoint that all ranks have on their nodes' disks to the store."""
        assert self._local is not None
        newest = [self._on_nodes]
        dist.broadcast_object_list(newest, src=0, group=self._store_group)
        if newest[0] > self._uploaded:
            checkpoint = self._local / folders.name_of(newest[0])
            state: dict[str, Any] = {}
            # From the file, so that no copy stays in memory for as long as the store takes.
            together(lambda: state.update(local_tier.open_local(checkpoint, self._like)), self._store_group)
            self._write(state, newest[0])

    def _background(self, name: str) -> Background:
        device = local_part(next(self._model.parameters())).device
        return Background(
            name, lambda: use_device(device), self._config.timeout_s, self._warn_of_hang, self._tell_return
        )

    def _written(self, step: int, seconds: float, detail: str) -> None:
        self._tell(Span(name=CHECKPOINT_WRITE, phase="end", seconds=seconds, detail=detail, step=step))
        if self._advice is not None and (words := self._advice.written(seconds)):
            self._tell(Note(text=words))

    def _leave_out(self, step: int) -> None:
        self._is_wanted = True
        if self._is_leader and not self._has_left_out:
            self._warn(
                f"the save of step {step} was left out, because the one before is still being written; training "
                "goes on, and the state is saved as soon as that is done"
            )
        self._has_left_out = True

    def _warn_of_failure(self, error: BaseException | None) -> None:
        # All have one, if any has.
        if error is not None and self._is_leader:
            self._warn(f"a checkpoint could not be written and is made again: {type(error).__name__}: {error}")

    def _warn_of_space(self, checkpoint: Path) -> None:
        if self._is_leader and not self._has_looked_at_space:
            self._has_looked_at_space = True
            with suppress(OSError):
                if words := why_it_fills_up(checkpoint, self._config.keep):
                    self._warn(words)

    def _warn_of_hang(self, what: str) -> None:
        if self._is_leader:
            self._tell(Alert(what="storage", text=self._no_answer(what)))
            self._warn(f"{self._no_answer(what)}; training goes on, and saves are left out until it answers")

    def _warn_of_slow_reading(self, what: str) -> None:
        if self._is_leader:
            self._tell(Alert(what="storage", text=self._no_answer(what)))
            self._warn(
                f"{self._no_answer(what)}; training and saves go on, and older checkpoints stay until it ends"
            )

    def _tell_return(self, what: str, seconds: float) -> None:
        if self._is_leader:
            self._tell(Note(text=f"the disk answers again: {what} took {seconds:.0f} s"))

    def _warn_of_damage(self, name: str, files: list[str]) -> None:
        self._is_wanted = True
        self._warn(
            f"{name} is not on the disk as it was written ({', '.join(files)}) and was moved to damaged-{name}; "
            "the state is saved again at once"
        )

    def _warn(self, text: str) -> None:
        self._tell(Note(level="warning", text=text))

    def _no_answer(self, what: str) -> str:
        return (
            f"{what} did not end within checkpoint.timeout_s ({self._config.timeout_s:g} s): the disk of "
            f"{self.folder} hangs, or is too slow"
        )
