"""A stop that comes before there is anything to save."""

import os
import signal
import threading
from types import FrameType

from training.errors import EXIT_INTERRUPTED

_is_watched = False


def leave_at_once() -> None:
    """On SIGTERM leave at once, until somebody else handles it.

    A container's first process does not even die of a signal that it does not handle. The handler itself would be
    too late: Python runs none while the process waits in C++ for nodes that may never come, so a thread is woken.
    """
    global _is_watched
    signal.signal(signal.SIGTERM, _hold)
    if _is_watched:
        return
    _is_watched = True
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_leave_when_told, args=(reader,), name="early-stop", daemon=True).start()


def _leave_when_told(reader: int) -> None:
    while number := os.read(reader, 1):
        if number[0] == signal.SIGTERM and signal.getsignal(signal.SIGTERM) is _hold:
            os._exit(EXIT_INTERRUPTED)


def _hold(signum: int, frame: FrameType | None) -> None:
    pass
