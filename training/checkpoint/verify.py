"""Comparing a checkpoint's files with their checksums, shared by the ranks."""

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from training.checkpoint.damage import is_damage
from training.checkpoint.manifest import FileEntry
from training.patience import patiently

_PATIENCE_S = 5.0

_BLOCK = 4 * 2**20
"""Bytes read at once: reading and hashing hold no lock of Python's, and what is between them does."""


_RESTS = 3.0
"""Of the time that a block took, after it: what reads and hashes also takes memory's bandwidth from steps."""

SLOWER = 1 + _RESTS
"""Times as long as it takes without rests."""

_LONGEST_REST_S = 1.0
"""After a block for which a disk has taken its time."""

_NICENESS = 15
"""About a thirtieth of a core that a training thread wants too; with less, old checkpoints would pile up where
there are no cores to spare."""


class Stopped(Exception):
    """The verification was not finished, because nobody waits for it any more."""


def shares(files: Mapping[str, FileEntry], num: int) -> list[list[str]]:
    """Divide files into `num` shares of about the same number of bytes; the same on every rank."""
    parts: list[list[str]] = [[] for _ in range(num)]
    sizes = [0] * num
    for name in sorted(files, key=lambda name: (-files[name].bytes, name)):
        smallest = sizes.index(min(sizes))
        parts[smallest].append(name)
        sizes[smallest] += files[name].bytes
    return parts


def damaged_files(
    folder: Path,
    files: Mapping[str, FileEntry],
    names: Sequence[str],
    on_read: Callable[[int], None] = lambda num_bytes: None,
) -> list[str]:
    """Names of the files that are missing, cannot be read, or are not what was written.

    Args:
        folder: The checkpoint.
        files: What its manifest says.
        names: Which of them to read.
        on_read: Called with the bytes of every block that was read; what it raises ends the reading.

    Raises:
        OSError: The disk does not give them now; see `is_damage`.
    """
    return [name for name in names if not _holds(folder / name, files[name], on_read)]


def _holds(path: Path, entry: FileEntry, on_read: Callable[[int], None]) -> bool:
    try:
        if not path.is_file() or path.stat().st_size != entry.bytes:
            return False
        # An error may be of this moment alone, and a checkpoint is not put aside for that.
        return patiently(lambda: read_back(path, on_read), _PATIENCE_S) == entry.sha256
    except OSError as error:
        if not is_damage(error):
            raise
        return False


def read_back(path: Path, on_read: Callable[[int], None] = lambda num_bytes: None) -> str:
    """SHA-256 of a file as it is on the disk, in hex, and not as this host's memory still has it."""
    found = hashlib.sha256()
    buffer = memoryview(bytearray(_BLOCK))
    with path.open("rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while count := file.readinto(buffer):
            found.update(buffer[:count])
            on_read(count)
    return found.hexdigest()


class Pace:
    """Lets reading take a fourth of the time.

    Args:
        is_over: Set once nothing is computed any more that rests would be of use for.
    """

    def __init__(self, is_over: threading.Event) -> None:
        self._is_over = is_over
        self._since = time.monotonic()

    def rest(self) -> None:
        """Rest after a block."""
        self._is_over.wait(min(_LONGEST_REST_S, _RESTS * (time.monotonic() - self._since)))
        self._since = time.monotonic()


def be_modest() -> None:
    """Leave the cores to the training: on Linux every thread has a priority of its own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
