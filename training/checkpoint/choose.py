"""Which checkpoint a run goes on from: the newest whose checksums hold."""

import contextlib
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from training.checkpoint import folders, local_tier
from training.checkpoint.groups import any_rank, disk_group, together
from training.checkpoint.manifest import FileEntry, Manifest, OtherVersionError, read_manifest
from training.checkpoint.verify import damaged_files, shares
from training.errors import UserError
from training.store import remove

T = TypeVar("T")

_WORD_EVERY_S = 15.0
"""Between two words on how far the reading is."""


def choose_checkpoint(
    folder: Path, local: Path | None = None, say: Callable[[str], None] = lambda text: None
) -> tuple[Path | None, list[str]]:
    """Choose the newest whole checkpoint, and clear away what is newer. Collective.

    All ranks share the reading. One of the nodes' own disks counts if every rank finds its part of it on its node.
    A damaged one of the store is moved to `damaged-step-<n>`, for people to look at; of a node's own disk, it is
    removed.

    Args:
        folder: The run's checkpoints in the store.
        local: The run's folder on the node's own disk, where it has one.
        say: Told on every rank how far its share of the reading is, when that takes long.

    Returns:
        The checkpoint, of this rank if it is on the node's own disk; None if the run has not saved any. And the
        names of those just found damaged.

    Raises:
        UserError: There were checkpoints, but none is whole; another version of Shardline made one; or a node's
            own disk cannot be written to.
        OSError: The disk does not give them now.
    """
    group = disk_group()
    try:
        return _Choice(folder, local, say, group).make()
    finally:
        dist.destroy_process_group(group)


class _Choice:
    def __init__(
        self, folder: Path, local: Path | None, say: Callable[[str], None], group: dist.ProcessGroup
    ) -> None:
        self._folder = folder
        self._mine = local_tier.rank_folder(local) if local is not None else None
        self._say = say
        self._group = group
        self._is_leader = dist.get_rank() == 0
        self._damaged: list[str] = []
        self._manifests: dict[int, Manifest] = {}

    def make(self) -> tuple[Path | None, list[str]]:
        together(self._check_local, self._group)
        in_store = set(self._from_leader(lambda: _steps(self._folder)))
        on_nodes = self._steps_on_nodes()
        chosen = None
        for step in sorted(in_store | on_nodes, reverse=True):
            if step in on_nodes and (chosen := self._whole_on_nodes(step)) is not None:
                break
            if step in in_store and (chosen := self._whole_in_store(step)) is not None:
                break
        if chosen is None:
            self._look_for_remains()
        together(lambda: self._clear(chosen), self._group)
        if chosen is None and (all_damaged := self._from_leader(lambda: folders.quarantined(self._folder))):
            # Also those that an earlier start found: it was told to people, and nothing has been mended since.
            raise UserError(
                f"the checkpoints of this run in {self._folder} are damaged ({', '.join(all_damaged)}): restore "
                f"one, or remove {self._folder} to train from the start"
            )
        return chosen, self._damaged

    def _check_local(self) -> None:
        if self._mine is not None:
            try:
                self._mine.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(
                    f"checkpoint.local_folder cannot be used on the node {platform.node()}: {error}; mount a disk "
                    "there that this user may write to, or set it to null"
                ) from error

    def _look_for_remains(self) -> None:
        """There is nothing to go on from: say so where there was something, and not only that nothing is there."""
        together(lambda: folders.quarantine_unsealed(self._folder) if self._is_leader else None, self._group)
        if any(self._from_all(self._mine is not None and bool(folders.checkpoints(self._mine)))):
            self._say(
                "the nodes' own disks have no checkpoint that is whole on all of them, and the store has none "
                "yet: training begins at its first step"
            )

    def _whole_in_store(self, step: int) -> Path | None:
        checkpoint = self._folder / folders.name_of(step)
        manifest = self._from_leader(lambda: read_manifest(checkpoint))
        if manifest is not None:
            mine = shares(manifest.files, dist.get_world_size())[dist.get_rank()]
            if not self._any_damaged(checkpoint, manifest.files, mine):
                return checkpoint
        self._damaged.append(checkpoint.name)
        together(lambda: folders.quarantine(checkpoint) if self._is_leader else None, self._group)
        return None

    def _steps_on_nodes(self) -> set[int]:
        """Steps of which every rank has a part on its node that might be whole, of one save at this placement."""

        def look() -> None:
            for checkpoint in folders.checkpoints(self._mine) if self._mine is not None else ():
                # The store's decides whether this version can go on with the run.
                with contextlib.suppress(OtherVersionError, OSError):
                    manifest = read_manifest(checkpoint)
                    if manifest is not None and local_tier.fits_here(manifest):
                        self._manifests[manifest.step] = manifest

        together(look, self._group)
        saves = {(step, str(manifest.about.get("attempt"))) for step, manifest in self._manifests.items()}
        return {step for step, _ in set.intersection(*self._from_all(saves))}

    def _whole_on_nodes(self, step: int) -> Path | None:
        assert self._mine is not None
        checkpoint = self._mine / folders.name_of(step)
        files = self._manifests[step].files
        if not self._any_damaged(checkpoint, files, list(files)):
            return checkpoint
        remove(checkpoint)
        return None

    def _any_damaged(self, checkpoint: Path, files: Mapping[str, FileEntry], mine: list[str]) -> bool:
        total = sum(files[name].bytes for name in mine)
        progress = _Progress(checkpoint.name, total, self._say)
        damaged: list[str] = []
        together(lambda: damaged.extend(damaged_files(checkpoint, files, mine, progress)), self._group)
        return any_rank(self._group, bool(damaged))[0]

    def _clear(self, chosen: Path | None) -> None:
        step = None if chosen is None else folders.step_of(chosen)
        if self._is_leader:
            folders.clear_after(self._folder, step)
        if self._mine is not None:
            folders.clear_after(self._mine, step if step is not None else 0)

    def _from_leader(self, look: Callable[[], T]) -> T:
        """What the leader sees, on all ranks; what it raises, too."""
        answer: list[T | None] = [None]

        def ask() -> None:
            if self._is_leader:
                answer[0] = look()

        together(ask, self._group)
        dist.broadcast_object_list(answer, src=0, group=self._group)
        return answer[0]  # type: ignore[return-value]

    def _from_all(self, value: T) -> list[T]:
        values: list[T] = [value] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self._group)
        return values


class _Progress:
    """Tells now and then how much of a checkpoint was read."""

    def __init__(self, name: str, num_bytes: int, say: Callable[[str], None]) -> None:
        self._name = name
        self._num_bytes = num_bytes
        self._say = say
        self._read = 0
        self._told = time.monotonic()

    def __call__(self, num_bytes: int) -> None:
        self._read += num_bytes
        if time.monotonic() - self._told > _WORD_EVERY_S:
            self._told = time.monotonic()
            share = self._read / max(1, self._num_bytes)
            self._say(f"verifying {self._name}: {share:.0%} of this rank's {self._num_bytes / 2**30:.1f} GiB")


def _steps(folder: Path) -> list[int]:
    return [folders.step_of(path) or 0 for path in folders.checkpoints(folder)]
