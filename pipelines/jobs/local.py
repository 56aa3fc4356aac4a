"""A run that `shardline run` works on, seen from another process of the same machine."""

import contextlib
import time
from collections.abc import Callable

import psutil

from pipelines.processes import stop_run
from training.run_folder import RunFolder

_GRAPH = "pipelines.local_graph"

_LOOK_S = 0.2

_TELL_S = 10.0


def graph_of(folder: RunFolder) -> psutil.Process | None:
    """The process that runs the graph of a run on this machine; None if there is none.

    Found by its command line, not by the run's lock: to try a lock is to hold it for a moment.
    """
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if _GRAPH in command and any(part.startswith(f"{folder.path}/pipeline/") for part in command):
            return process
    return None


def stop_here(folder: RunFolder, say: Callable[[str], None]) -> bool:
    """Do what Ctrl-C in the run's terminal does, and come back when the run has ended.

    Args:
        folder: The run's.
        say: Takes a line that tells how it goes.

    Returns:
        Whether there was anything to stop.
    """
    graph = graph_of(folder)
    if graph is None:
        return False
    processes = [graph]
    with contextlib.suppress(psutil.NoSuchProcess):
        command = graph.parent()
        # Told through the command, which then says in its own terminal what happens.
        if command is not None and str(command.pid) == graph.cmdline()[-1]:
            processes.append(command)
            command.terminate()
        else:
            stop_run(folder, graph.pid)
    say("stopping: the running step saves and leaves …")
    told = time.monotonic()
    while any(map(_runs, processes)):
        time.sleep(_LOOK_S)
        if time.monotonic() - told >= _TELL_S:
            told = time.monotonic()
            say("it still saves …")
    return True


def _runs(process: psutil.Process) -> bool:
    """Whether a process has not ended; one that only its parent has not asked after has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
