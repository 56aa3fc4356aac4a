"""Runs a job as processes of this machine: one node under torchrun on loopback."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from components.cluster.job_state import Phase
from components.jobs.incident import tail
from components.jobs.job import STAY_S, TrainingJob
from components.jobs.launchers import Ending
from training.config import one_node_only
from training.errors import EXIT_INTERRUPTED, UserError
from training.guard.place import host_name
from training.guard.warm import JOB_VARIABLE
from training.processes import die_with_parent

_STOP_GRACE_S = 330.0
"""After SIGTERM the ranks finish their step and save; past this, SIGKILL. Longer than the node's own grace."""

_ORPHAN_GRACE_S = 15.0
"""Ranks without a node were told to leave by its death, but finish their step first; past this, SIGKILL."""


class LocalLauncher:
    """Runs one job on this machine, or in the pod that this process runs in."""

    name = "local"
    forwards_logs = False
    poll_s = 0.1

    def __init__(self) -> None:
        self._log: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_asked = False

    def submit(self, job: TrainingJob) -> dict[str, object]:
        """Start the node's process; its output goes to the attempt's `node.log`."""
        if job.num_nodes != 1:
            section = "parallel" if job.purpose == "training" else job.purpose
            raise UserError(one_node_only(job.num_nodes, section))
        env = {
            **os.environ,
            "SHARDLINE_ATTEMPT": str(job.attempt),
            "SHARDLINE_STAY_S": str(STAY_S),
            "PET_NNODES": "1",
            "PET_NPROC_PER_NODE": str(job.procs_per_node),
            "PET_RDZV_BACKEND": "c10d",
            # Port 0: the kernel picks a free one, so that several runs can share the machine.
            "PET_RDZV_ENDPOINT": "127.0.0.1:0",
            "PET_RDZV_ID": job.name,
            # Without it torchrun announces the machine's host name, which need not resolve on a laptop.
            "PET_LOCAL_ADDR": "127.0.0.1",
        }
        attempt = job.run_folder / "attempts" / str(job.attempt)
        attempt.mkdir(parents=True, exist_ok=True)
        launcher = os.getpid()
        self._log = attempt / "node.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "training.node", str(job.run_folder)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C goes to this process alone, which then stops the node in good order.
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(launcher),
            )
        return {"pid": self._process.pid, "created": psutil.Process(self._process.pid).create_time()}

    def poll(self) -> Phase:
        """Look at the node's process."""
        assert self._process is not None, "poll() before submit()"
        code = self._process.poll()
        if code is None:
            return Phase.RUNNING
        return Phase.SUCCEEDED if code == 0 else Phase.FAILED

    def waiting(self) -> list[str]:
        """A process waits for nothing."""
        return []

    def lacks_machines(self) -> bool:
        """It has the one that it runs on."""
        return False

    def report_progress(self, progress: dict[str, object]) -> None:
        """The terminal reads the event stream itself."""

    def ending(self) -> Ending:
        """The node's exit code, 128 + n for signal n, and the end of its log."""
        assert self._process is not None and self._log is not None, "ending() before submit()"
        code = self._process.poll()
        code = code if code is None or code >= 0 else 128 - code
        # Who stops the machine asks all of its processes to leave.
        what = "preempted" if code == EXIT_INTERRUPTED and not self._is_asked else None
        return Ending(what=what, exit_code=code, host=host_name(), log=tail(self._log))

    def stop(self) -> None:
        """SIGTERM, wait for the ranks to save, then SIGKILL whatever is left."""
        self._is_asked = True
        if self._process is not None:
            if self._process.poll() is None:
                _terminate(psutil.Process(self._process.pid))
            self._process.wait()


def stop_leftovers(run_folder: Path) -> int:
    """Stop what earlier launchers of a run left on this machine, and come back when it is gone.

    Found by their command lines and environments, not by records: a launcher can be killed before it writes one,
    and a node before its ranks.

    Returns:
        The number of jobs stopped.
    """
    nodes = _nodes(run_folder)
    for node in nodes:
        _terminate(node)
    orphans = _others(run_folder)
    _, alive = psutil.wait_procs(orphans, timeout=_ORPHAN_GRACE_S)
    _kill(alive)
    return len(nodes) or min(1, len(orphans))


def _nodes(run_folder: Path) -> list[psutil.Process]:
    processes = psutil.process_iter(["cmdline"])
    return [p for p in processes if {"training.node", str(run_folder)} <= set(p.info["cmdline"] or [])]


def _others(run_folder: Path) -> list[psutil.Process]:
    """Ranks, and what they were forked from."""
    processes = psutil.process_iter(["environ"])
    return [p for p in processes if (p.info["environ"] or {}).get(JOB_VARIABLE) == str(run_folder)]


def _terminate(node: psutil.Process) -> None:
    try:
        ranks = node.children(recursive=True)
        node.terminate()
        # A process that was stopped hears of it only when it goes on.
        for process in (node, *ranks):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
        _, alive = psutil.wait_procs([node, *ranks], timeout=_STOP_GRACE_S)
    except psutil.NoSuchProcess:
        return
    _kill(alive)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=_ORPHAN_GRACE_S)
