"""A file that one process keeps writing, and that others watch to know that it lives.

It travels through the store, so it needs no network between them. A watcher compares what it reads with what it
read before, by its own clock: clocks of machines differ.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path


class Heartbeat:
    """Writes the file in the background until it is stopped.

    Args:
        path: The file; its folder is made.
        every_s: Seconds between two beats.
    """

    def __init__(self, path: Path, every_s: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """End; the file stays as it is."""
        self._stop.set()
        self._thread.join(timeout=2)

    def _beat(self) -> None:
        number = 0
        while True:
            number += 1
            with contextlib.suppress(OSError):  # a full or slow disk: the next beat may get through
                self._path.write_text(f"{os.getpid()} {number} {time.time():.3f}\n")
            if self._stop.wait(self._every_s):
                return


class Watch:
    """Tells how long ago a heartbeat was last seen to change.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[bytes, int] | None = None
        self._changed = time.monotonic()

    def has_begun(self) -> bool:
        """Whether the heartbeat was seen at all."""
        return self._seen is not None

    def silent_s(self) -> float:
        """Seconds since the file changed, as far as this watch saw it."""
        seen = self._seen
        with contextlib.suppress(OSError):
            # The time too: on a full disk the file can be touched, but holds nothing.
            seen = self._path.read_bytes(), self._path.stat().st_mtime_ns
        if seen != self._seen:
            self._seen, self._changed = seen, time.monotonic()
        return time.monotonic() - self._changed


def call_when_silent(path: Path, timeout_s: float, lost: Callable[[], None]) -> None:
    """Call `lost` once, from a thread, when the heartbeat has not changed for `timeout_s` seconds."""
    watch = Watch(path)

    def look() -> None:
        while watch.silent_s() < timeout_s:
            time.sleep(min(5.0, timeout_s / 4))
        lost()

    threading.Thread(target=look, name="heartbeat-watch", daemon=True).start()
