"""How the lines of many pods stand in one log: each with its rank, and a copy of each pod's in a file."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO


class LogLines:
    """Prints lines of pods, and keeps each pod's in a file of its own.

    Args:
        node_rank: Of a pod, by its name.
        folder: For the files; None: none are kept.
        write: Prints a text of whole lines.
    """

    def __init__(self, node_rank: Callable[[str], int], folder: Path | None, write: Callable[[str], None]) -> None:
        self._node_rank = node_rank
        self._folder = folder
        self._write = write
        self._files: dict[str, IO[str]] = {}
        self._lock = threading.Lock()

    def take(self, pod: str, lines: list[str]) -> None:
        """Take a pod's next lines."""
        node = self._node_rank(pod)
        text = "".join(f"{with_rank(node, line)}\n" for line in lines)
        with self._lock:
            self._write(text)
            try:
                self._keep(pod, lines)
            except OSError as error:
                # What is printed is worth more than its copy.
                self._folder = None
                self._write(f"the pods' logs are not kept in files any more: {error}\n")

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            for file in self._files.values():
                with contextlib.suppress(OSError):
                    file.close()
            self._files.clear()
            # A line that comes late would open its file anew, and what is in it would be lost.
            self._folder = None

    def _keep(self, pod: str, lines: list[str]) -> None:
        if self._folder is None:
            return
        if pod not in self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._files[pod] = (self._folder / f"{pod}.log").open("w", encoding="utf-8", errors="backslashreplace")
        self._files[pod].write("".join(f"{line}\n" for line in lines))
        self._files[pod].flush()


def with_rank(node: int, line: str) -> str:
    """The line with the rank that wrote it, as the node marks it, or else with the node."""
    # What follows a carriage return would overwrite the rank; of a progress bar the last state counts.
    line = line.rstrip("\r").rpartition("\r")[2]
    return line if line.startswith("[rank ") else f"[node {node}] {line}"
