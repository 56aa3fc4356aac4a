"""Writing events without waiting for the disk that they go to."""

import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from training.events import EventWriter, Note
from training.flush import flush

_MOST_WAITING = 10_000
"""Events that wait for the disk at most; hours of steps, in some ten megabytes."""

_RETRY_S = 1.0


class BackgroundEventWriter:
    """Appends events to the writer's own file, in their order, from a thread of its own.

    A network disk can be slow, or answer to nothing for minutes, and a step must not wait for it. What a disk
    refuses is tried again until it is taken: a disk that stays full shows at the next checkpoint.

    Args:
        folder: `<run>/events`.
        source: The writer's name, which is also the file's.
        attempt: Stamped on every event.
        most_waiting: Events that wait at most; those that come on top are left out, and counted.
    """

    def __init__(self, folder: Path, source: str, attempt: int = 0, most_waiting: int = _MOST_WAITING) -> None:
        self._open = lambda: EventWriter(folder, source, attempt)
        self._waiting: queue.Queue[Any] = queue.Queue(most_waiting)
        self._num_lost = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._write_all, name="events", daemon=True).start()

    def write(self, event: Any) -> None:
        """Append one event, soon; never waits."""
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            with self._lock:
                self._num_lost += 1

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was given is in the file, for so many seconds; whether it is."""
        return flush(self._waiting, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Flush, and end the thread once all is written; see `flush`."""
        is_written = self.flush(timeout_s)
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        return is_written

    def _write_all(self) -> None:
        writer = _Retrying(self._open)
        writer.open()
        while True:
            event = self._waiting.get()
            if event is None:
                writer.close()
                return
            if isinstance(event, threading.Event):
                event.set()
                continue
            writer.write(event)
            with self._lock:
                num_lost, self._num_lost = self._num_lost, 0
            if num_lost:
                text = f"{num_lost} events of about this time are missing, because the store did not take them"
                writer.write(Note(level="warning", text=text))


class _Retrying:
    """Writes each event as often as it takes."""

    def __init__(self, open_file: Callable[[], EventWriter]) -> None:
        self._open_file = open_file
        self._writer: EventWriter | None = None
        self._is_told = False

    def open(self) -> None:
        self._retry(self._opened)

    def write(self, event: Any) -> None:
        self._retry(lambda: self._opened().write(event))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _opened(self) -> EventWriter:
        self._writer = self._writer or self._open_file()
        return self._writer

    def _retry(self, action: Callable[[], object]) -> None:
        while True:
            try:
                action()
                return
            except OSError as error:
                # A new one begins on a line of its own, also behind one that is half written.
                self._writer = None
                self._tell(error)
                time.sleep(_RETRY_S)

    def _tell(self, error: OSError) -> None:
        if not self._is_told:
            self._is_told = True
            print(f"events cannot be written, and are kept for now: {error}", file=sys.stderr, flush=True)
