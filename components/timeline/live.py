"""Keeps the page of a run up to date while it trains."""

import threading
import time
from collections.abc import Callable
from types import TracebackType

from components.timeline.page import write_timeline
from training.events import Decided, EventReader, Incident
from training.run_folder import RunFolder

_LOOK_S = 2.0

_ANEW_AFTER_S = 60.0

_SHARE = 0.005
"""Of a core, that making the page may take of a training of months."""


class LiveTimeline:
    """Writes `<run>/timeline.html` while the block lasts: after each incident, now and then, and at its end.

    What goes wrong here reaches no training: it is told once, and the page is older for a while.

    Args:
        folder: The run's.
        note: Takes a line for people.
        look_s: Seconds between two looks at the event stream.
    """

    def __init__(self, folder: RunFolder, note: Callable[[str], None], *, look_s: float = _LOOK_S) -> None:
        self._folder = folder
        self._note = note
        self._look_s = look_s
        self._reader = EventReader(folder.events)
        self._stop = threading.Event()
        self._has_told = False
        self._cost_s = 0.0
        self._thread = threading.Thread(target=self._run, name="timeline", daemon=True)

    def __enter__(self) -> "LiveTimeline":
        """Begin."""
        for _ in self._reader.poll():
            pass  # of an earlier start
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, with the page as the run stands."""
        self._stop.set()
        self._thread.join()
        self._write()

    def _run(self) -> None:
        written = None
        while not self._stop.wait(self._look_s):
            fresh = list(self._reader.poll())
            news = any(isinstance(event, Incident | Decided) for event in fresh)
            is_old = written is None or time.monotonic() - written > max(_ANEW_AFTER_S, self._cost_s / _SHARE)
            if news or is_old:
                self._write()
                written = time.monotonic()

    def _write(self) -> None:
        began = time.thread_time()
        try:
            write_timeline(self._folder)
        except OSError as error:
            if not self._has_told:
                self._has_told = True
                name = self._folder.timeline.name
                self._note(f"the page {name} could not be written, and the training goes on without: {error}")
        self._cost_s = time.thread_time() - began
