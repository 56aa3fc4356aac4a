"""How far each rank of a node has come, in memory that the node's own process reads.

A beat is written at every part of a step, so it has to cost next to nothing: some bytes into a file in memory. A
reader goes by whether it changed, by its own clock; what it says is for people, and to tell which rank is
behind.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

FOLDER_VARIABLE = "SHARDLINE_BEATS"
"""The folder of the node's beats, which the node tells its ranks in their environment."""

_PREFIX = "shardline-beats-"

_LENGTH = 128
"""Bytes of a beat, always, so that one that is half-written can be told."""

STEP_PARTS = ("data", "forward", "backward", "optimizer")
"""Parts of a step; all others may take as long as loading does."""


@dataclass(frozen=True)
class Beat:
    """Where a rank is.

    Attributes:
        rank: Global.
        pid: Of its process.
        number: Of the beat, from 1.
        part: What it does now: `load`, `first_step`, one of `STEP_PARTS`, `checkpoint`, `evaluation`, `export`, or
            `wait` (for the others, at the end).
        step: Steps done.
    """

    rank: int
    pid: int
    number: int
    part: str
    step: int


class BeatWriter:
    """A rank's side.

    Args:
        rank: Global.
        folder: Of the node's beats; None, where no node asks for them: nothing is written.
    """

    def __init__(self, rank: int, folder: str | None) -> None:
        self._rank = rank
        self._number = 0
        self._file = None
        if folder is not None:
            self._file = os.open(path_of(Path(folder), rank), os.O_WRONLY | os.O_CREAT, 0o600)

    @classmethod
    def of_this_rank(cls) -> "BeatWriter":
        """By the environment of the process."""
        return cls(int(os.environ["RANK"]), os.environ.get(FOLDER_VARIABLE))

    def __call__(self, part: str, step: int) -> None:
        """Say that this part begins.

        Args:
            part: See `Beat`.
            step: Steps done.
        """
        if self._file is None:
            return
        self._number += 1
        beat = Beat(self._rank, os.getpid(), self._number, part, step)
        os.pwrite(self._file, json.dumps(asdict(beat)).ljust(_LENGTH - 1).encode() + b"\n", 0)


def path_of(folder: Path, rank: int) -> Path:
    """The file of a rank's beats."""
    return folder / f"rank-{rank}"


def read_beats(folder: Path) -> list[Beat]:
    """The newest beat of every rank that has one which can be read, by rank."""
    beats = []
    for path in folder.glob("rank-*"):
        with suppress(OSError, ValueError, TypeError):
            content = path.read_bytes()
            if len(content) == _LENGTH:
                beats.append(Beat(**json.loads(content)))
    return sorted(beats, key=lambda beat: beat.rank)


@contextmanager
def beats_folder() -> Iterator[Path]:
    """A folder for the beats of this node's ranks, in memory where the machine has a disk in memory."""
    root = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())
    for left in root.glob(f"{_PREFIX}*"):  # by nodes that were killed
        pid = left.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", dir=root) as folder:
        yield Path(folder)
