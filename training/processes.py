"""Ties the life of a process to that of the process which started it, however that one dies."""

import ctypes
import os
import select
import signal
import sys
import threading

import psutil

from training.errors import EXIT_INTERRUPTED


def die_with_parent(parent: int | None = None, number: signal.Signals = signal.SIGTERM) -> None:
    """On Linux, get a signal when the parent dies; if it is dead already, leave at once.

    Args:
        parent: The parent's pid as the parent itself gave it, so that a death before this call is noticed too.
        number: The signal.
    """
    if sys.platform != "linux":
        return
    # Not "is it 1": in a pod, the parent of a rank may well be process 1.
    expected = parent or os.getppid()
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, number)
    if os.getppid() != expected:
        os._exit(EXIT_INTERRUPTED)


def die_with_ancestor(ancestor: int) -> None:
    """On Linux, get SIGTERM when a process further up dies, even if those between live on."""
    if sys.platform != "linux":
        return
    if all(process.pid != ancestor for process in psutil.Process().parents()):
        os._exit(EXIT_INTERRUPTED)
    descriptor = os.pidfd_open(ancestor)

    def wait() -> None:
        select.select([descriptor], [], [])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="die-with-ancestor", daemon=True).start()
