"""Watches the ranks of a node while they run, and ends those that hang."""

import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from training.guard.beat import read_beats
from training.guard.hang import HangDetector, Silence, describe, suspect
from training.guard.stacks import is_stopped, write_stacks

_LOOK_S = 0.2

_STACKS_S = 20.0
"""Most that stacks may take; past this the ranks are killed without them: the store may be what hangs."""


@dataclass(frozen=True)
class Hang:
    """What the guard found before it killed the ranks.

    Attributes:
        rank: That holds up the others, as far as this node can tell.
        is_stopped: Whether its process was stopped, which makes it the cause for certain.
        beat: The number of its last beat: of the nodes of an attempt, the least is behind.
        sentence: For people.
    """

    rank: int
    is_stopped: bool
    beat: int
    sentence: str


class Guard:
    """Looks after the ranks of one attempt on this node, in a thread.

    Args:
        pids: Of the ranks, by global rank.
        beats: Folder of their beats.
        stacks: Folder in which their stacks are kept when they hang.
        step_s: See `HangDetector`.
        other_s: Likewise.

    Attributes:
        hang: What was found before the ranks were killed; None: nothing.
    """

    def __init__(
        self,
        pids: Mapping[int, int],
        beats: Path,
        stacks: Path,
        *,
        step_s: float | None,
        other_s: float | None,
    ) -> None:
        self.hang: Hang | None = None
        self._pids = dict(pids)
        self._beats = beats
        self._stacks = stacks
        self._detector = HangDetector(self._pids, step_s, other_s, time.monotonic())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, after what it is about to do about a hang."""
        self._stop.set()
        self._thread.join(_STACKS_S + 5)

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            if not self._silent():
                continue
            self._write_stacks()
            # Once more: stacks take a second or more, and a rank may have come to itself meanwhile.
            silent = self._silent()
            if silent:
                self.hang = self._describe(silent)
                # At once: ranks that hang cannot save, and SIGKILL also ends those that are stopped.
                kill(self._pids)
                return

    def _silent(self) -> list[Silence]:
        return self._detector.check(read_beats(self._beats), time.monotonic())

    def _describe(self, silent: list[Silence]) -> Hang:
        found = suspect(silent, lambda rank: is_stopped(self._pids[rank]))
        stopped = is_stopped(self._pids[found.rank])
        how = ", and its process is stopped" if stopped else ""
        sentence = f"{describe(found)}{how}; stacks are in {self._stacks}"
        return Hang(found.rank, stopped, found.number, sentence)

    def _write_stacks(self) -> None:
        writer = threading.Thread(
            target=write_stacks, args=(self._pids, self._beats, self._stacks), name="stacks", daemon=True
        )
        writer.start()
        writer.join(_STACKS_S)


def kill(pids: Mapping[int, int]) -> None:
    """End ranks without a grace."""
    for pid in pids.values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
