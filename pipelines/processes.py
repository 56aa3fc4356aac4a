"""What the `shardline run` command and its graph's process share: who holds a run, and how its step is stopped.

The command holds `run.lock` in the run's folder for its whole life, the graph's process holds `graph.lock`: a
graph whose command was killed still stops its step in good order, and until then the run is in use. The kernel
lets go of both when their process ends, however it ends.
"""

import contextlib
import fcntl
from typing import IO

import psutil

from training.run_folder import RunFolder


def lock_run(folder: RunFolder) -> IO[bytes] | None:
    """Take a run for this process, as long as the file that is returned is open; None if it is in use."""
    lock = _lock(folder, "run.lock")
    if lock is None:
        return None
    graph = lock_graph(folder)
    if graph is None:
        lock.close()
        return None
    graph.close()  # only a look: the graph's process takes it
    return lock


def lock_graph(folder: RunFolder) -> IO[bytes] | None:
    """Mark a run's graph as running, as long as the file that is returned is open; None if one runs."""
    return _lock(folder, "graph.lock")


def _lock(folder: RunFolder, name: str) -> IO[bytes] | None:
    file = (folder.path / name).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def stop_run(folder: RunFolder, graph_pid: int) -> None:
    """No further step begins, and the running one saves and leaves."""
    try:
        folder.stop_request.touch()
    finally:
        for process in _running_steps(graph_pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()


def _running_steps(graph_pid: int) -> list[psutil.Process]:
    """The Python process of the step that runs; the shell around it passes its exit code on."""
    steps = []
    for process in psutil.Process(graph_pid).children(recursive=True):
        try:
            is_step = "kfp.dsl.executor_main" in process.cmdline() and "python" in process.name()
        except psutil.NoSuchProcess:
            continue
        if is_step:
            steps.append(process)
    return steps
