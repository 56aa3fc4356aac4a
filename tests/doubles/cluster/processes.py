"""Processes of containers, which are found by a mark in their environment wherever they have moved to."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CONTAINER = "CONTAINER_ID"
CLUSTER = "CONTAINER_CLUSTER"


def kill_marked(name, value):
    """Kill all processes with this variable in their environment, and return when they are gone."""
    mark = f"{name}={value}".encode()
    while found := [pid for pid in _processes() if mark in _environment(pid)]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def ask_to_stop(pid):
    """SIGTERM as process 1 of a container gets it: without a handler of its own it notices nothing."""
    with contextlib.suppress(OSError):
        if _handles(pid, signal.SIGTERM):
            os.kill(pid, signal.SIGTERM)


def guard(cluster):
    """A process that kills all containers when this one is gone, however it went."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, cluster], stdin=subprocess.PIPE, start_new_session=True
    )


def _handles(pid, number):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _processes():
    names = [entry.name for entry in Path("/proc").iterdir()]
    return [int(name) for name in names if name.isdigit() and int(name) != os.getpid()]


def _environment(pid):
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        # A process that has ended keeps its entry until its parent has looked.
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ()
    return () if state in "ZX" else environment


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.read()
    kill_marked(CLUSTER, sys.argv[1])
