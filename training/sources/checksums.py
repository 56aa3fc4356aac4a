"""Checksums of files, remembered."""

import hashlib
import json
import os
import time
from pathlib import Path

from training.store import checksum, write_atomically
from training.user_cache import user_cache

_WORTH_BYTES = 2**24
"""Size from which on remembering a checksum is worth a file. Large sets come in many files of middling size."""

_SETTLED_S = 2.0
"""A file that changed later than this before it was read could change again at the same time of change."""


def known_checksum(path: Path) -> str:
    """SHA-256 of a file, in hex.

    That of a large file is remembered in the user's cache, by path, size, time of change and inode, so that a set
    of hundreds of gigabytes is read once and not by every step and run.
    """
    before = path.stat()
    if before.st_size < _WORTH_BYTES:
        return checksum(path)
    memory = user_cache("checksums") / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.json"
    state = [before.st_size, before.st_mtime_ns, before.st_ino]
    known = _read(memory)
    if known is not None and known[:-1] == state:
        return str(known[-1])
    found = checksum(path)
    if time.time() - before.st_mtime > _SETTLED_S and os.access(_writable(memory), os.W_OK):
        write_atomically(memory, json.dumps([*state, found]))
    return found


def _writable(path: Path) -> Path:
    """The nearest folder of a path that exists."""
    return next(parent for parent in path.parents if parent.is_dir())


def _read(memory: Path) -> list[object] | None:
    try:
        known = json.loads(memory.read_text())
    except (OSError, ValueError):
        return None  # not there, or not written by this
    return known if isinstance(known, list) and len(known) == 4 else None
