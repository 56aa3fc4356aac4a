"""What the supervisor of a job tells its nodes through the store: which attempt they are to run.

Nodes whose ranks have ended stay for a while, with all imported, so that a restart in the same place costs a
fork. The file is written in place, because on a network disk an open file of a known name is always seen as it
is, a new name only after a while.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

from training.patience import patiently

_LENGTH = 64
"""Bytes of the file, always, so that a reader can tell an order that is half-written."""


class Orders:
    """The order to the nodes of a job.

    Args:
        job_path: See `RunFolder.job_path`.
    """

    def __init__(self, job_path: Path) -> None:
        self._path = job_path / "orders"

    def give(self, attempt: int) -> None:
        """Let every node run this attempt, and end what it runs of one before."""
        patiently(lambda: self._write({"attempt": attempt}))

    def end(self, attempt: int) -> None:
        """Let every node end what it runs of this attempt, and leave: its ranks have nothing to save any more."""
        patiently(lambda: self._write({"attempt": attempt + 1, "leave": True}))

    def _write(self, order: dict[str, int]) -> None:
        content = json.dumps(order).ljust(_LENGTH - 1) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, content.encode(), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def attempt(self) -> int:
        """The attempt to run; 0 if there is no order, or none that can be read now."""
        return self._read()[0]

    def says_leave(self) -> bool:
        """Whether it is to be run by others, and the nodes that read this are to leave."""
        return self._read()[1]

    def _read(self) -> tuple[int, bool]:
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = self._path.read_bytes()
            if len(content) == _LENGTH:
                order = json.loads(content)
                return int(order["attempt"]), bool(order.get("leave"))
        return 0, False
