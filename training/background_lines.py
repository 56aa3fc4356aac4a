"""Printing without waiting for the disk that a rank's log is on."""

import queue
import threading
from contextlib import suppress

from training.flush import flush

_MOST_WAITING = 1000
"""Lines that wait for the disk at most; those on top are left out, since events tell the same."""


class BackgroundLines:
    """Prints lines in their order, from a thread of its own.

    A log is a file in the store, which can hang or be full, and a step must neither wait for it nor end because of
    it.

    Args:
        most_waiting: Lines that wait at most.
    """

    def __init__(self, most_waiting: int = _MOST_WAITING) -> None:
        self._waiting: queue.Queue[str | threading.Event] = queue.Queue(most_waiting)
        threading.Thread(target=self._print_all, name="lines", daemon=True).start()

    def print(self, text: str) -> None:
        """Print a line, soon; never waits."""
        with suppress(queue.Full):
            self._waiting.put_nowait(text)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was given is printed, for so many seconds; whether it is."""
        return flush(self._waiting, timeout_s)

    def _print_all(self) -> None:
        while True:
            line = self._waiting.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            with suppress(OSError):
                print(line, flush=True)
