"""Waiting for a thread that takes what is given to it from a queue."""

import queue
import threading
import time
from typing import Any


def flush(waiting: "queue.Queue[Any]", timeout_s: float) -> bool:
    """Wait until all that was given before is done.

    Args:
        waiting: Its reader sets each `threading.Event` that it comes to.
        timeout_s: For so many seconds at most, also for room in the queue.

    Returns:
        Whether it is done.
    """
    deadline, done = time.monotonic() + timeout_s, threading.Event()
    try:
        waiting.put(done, timeout=timeout_s)
    except queue.Full:
        return False
    return done.wait(max(0.0, deadline - time.monotonic()))
