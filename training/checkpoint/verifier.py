"""Reading every checkpoint back after it was written, beside the training."""

import threading
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from training.checkpoint import folders
from training.checkpoint.background import Background
from training.checkpoint.groups import disk_group, together
from training.checkpoint.manifest import Manifest, read_manifest
from training.checkpoint.verify import SLOWER, Pace, Stopped, be_modest, damaged_files, shares
from training.store import remove

_CLOSE_S = 15.0
"""How long the end of a run waits for a reading that was told to stop: on a disk that works, a block is read by
then."""


class Verifier:
    """Verifies checkpoints in a thread of its own, all ranks together, and removes those that are old.

    Args:
        folder: The run's checkpoints.
        keep: How many stay. An older one is removed only when the newest was found whole;
            so is all but as many of the damaged ones.
        timeout_s: After so many seconds of reading, the disk counts as hung.
        on_damaged: Called on rank 0 with the name of one that was damaged, and its files that are.
        on_hung: Called with what hangs.
        on_return: Called when that ends after all, with the seconds that it took.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        timeout_s: float,
        on_damaged: Callable[[str, list[str]], None],
        on_hung: Callable[[str], None],
        on_return: Callable[[str, float], None],
    ) -> None:
        self._folder = folder
        self._keep = keep
        self._timeout_s = timeout_s
        self._on_damaged = on_damaged
        self._group = disk_group()
        self._is_training_over = threading.Event()
        self._stopped = threading.Event()
        self._verified = 0
        self._background = Background("verify", be_modest, timeout_s * SLOWER, on_hung, on_return)

    def verify_newest(self) -> None:
        """Verify the newest checkpoint, in the background. Collective: every rank calls it equally often."""
        self._background.submit("verifying a checkpoint", self._verify_newest)

    def take_failure(self) -> BaseException | None:
        """What kept a checkpoint from being verified, or an old one from being removed, since the last call."""
        return self._background.take_failure()

    def close(self, *, finish: bool) -> None:
        """End the thread's work, so that nothing reads what is removed next. Collective.

        Args:
            finish: Wait until all is verified, for as long as a disk may take.
        """
        self._is_training_over.set()
        if finish:
            self._background.wait(self._timeout_s)  # without rests
        self._stopped.set()
        self._background.wait(_CLOSE_S)

    def _verify_newest(self) -> None:
        found: list[tuple[str, Manifest | None] | None] = [None]
        try:
            if dist.get_rank() == 0:
                found[0] = self._look()
        finally:
            # The others wait for an answer, whatever a disk does.
            dist.broadcast_object_list(found, src=0, group=self._group)
        if found[0] is None:
            return
        name, manifest = found[0]
        checkpoint = self._folder / name
        mine: list[list[str] | None] = []
        together(lambda: mine.append(self._damaged_of_share(checkpoint, manifest)), self._group)
        answers: list[list[str] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(answers, mine[0], group=self._group)
        if dist.get_rank() != 0 or any(answer is None for answer in answers):
            return
        if damaged := [file for answer in answers for file in answer or []]:
            folders.quarantine(checkpoint)
            self._on_damaged(name, damaged)
        else:
            self._verified = folders.step_of(checkpoint) or 0
            self._retain()

    def _look(self) -> tuple[str, Manifest | None] | None:
        """The newest checkpoint that was not verified yet; several may have been written meanwhile."""
        if self._stopped.is_set() or folders.newest_step(self._folder) <= self._verified:
            return None
        newest = folders.checkpoints(self._folder)[-1]
        return newest.name, read_manifest(newest)

    def _damaged_of_share(self, checkpoint: Path, manifest: Manifest | None) -> list[str] | None:
        """Of this rank's share of the files; None if it was stopped."""
        if manifest is None:
            return ["manifest.json"] if dist.get_rank() == 0 else []

        pace = Pace(self._is_training_over)

        def go_on(num_bytes: int) -> None:
            pace.rest()
            if self._stopped.is_set():
                raise Stopped

        names = shares(manifest.files, dist.get_world_size())[dist.get_rank()]
        try:
            return damaged_files(checkpoint, manifest.files, names, go_on)
        except Stopped:
            return None

    def _retain(self) -> None:
        settled = [path for path in folders.checkpoints(self._folder) if _step(path) <= self._verified]
        for old in settled[: -self._keep]:
            remove(old)
        # They are for people to look at, and each is as large as a whole one.
        for name in folders.quarantined(self._folder)[: -self._keep]:
            remove(self._folder / name)


def _step(path: Path) -> int:
    return folders.step_of(path) or 0
