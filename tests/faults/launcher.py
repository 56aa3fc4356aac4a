"""Runs a job on the suite's hosts, as a cluster would: jobs have names, and outlive those who asked for them."""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from components.cluster.job_state import Phase, PodEnd
from components.jobs.evidence import describe_ending
from components.jobs.incident import tail
from components.jobs.job import TrainingJob
from components.jobs.launchers import Ending
from tests.faults.hosts import Host, agent, read_hosts
from tests.runs import free_port
from training.store import write_atomically


class HostLauncher:
    """Runs one job on hosts; satisfies `components.jobs.launchers.Launcher`.

    Args:
        folder: Of the hosts.
        env: More variables of every node.
    """

    name = "hosts"
    forwards_logs = False
    poll_s = 0.1

    def __init__(self, folder: Path, env: dict[str, str] | None = None) -> None:
        self._folder = folder
        self._env = env or {}
        self._job: TrainingJob | None = None

    def submit(self, job: TrainingJob) -> dict[str, object]:
        """Make the job, or go on with the one of this name that is there."""
        self._job = job
        path = self._path / "job.json"
        if not path.is_file():
            self._path.mkdir(parents=True)
            write_atomically(path, json.dumps({"nodes": job.num_nodes, "made_by": os.getpid()}))
            with (self._folder / "made").open("a") as made:
                made.write(f"{job.name} {time.time()}\n")
        self._place()
        return {"hosts": self.hosts()}

    def phase(self, name: str) -> Phase:
        """How the job of a name stands."""
        folder = self._folder / "jobs" / name
        if not (folder / "job.json").is_file():
            return Phase.GONE
        codes = [_read(folder / f"node-{node}.json").get("exit_code") for node in _read(folder / "placed.json")]
        if any(codes):
            return Phase.FAILED
        return Phase.SUCCEEDED if codes and None not in codes else Phase.RUNNING

    def poll(self) -> Phase:
        """Look at the nodes; start those that a host has become free for."""
        assert self._job is not None, "poll() before submit()"
        if not self._place():
            return Phase.STARTING
        codes = [self._state(node).get("exit_code") for node in range(self._job.num_nodes)]
        if any(codes):
            return Phase.FAILED
        return Phase.RUNNING if None in codes else Phase.SUCCEEDED

    def waiting(self) -> list[str]:
        """Nodes that no host is free for."""
        assert self._job is not None
        placed = self.hosts()
        return [f"no host is free for node {n}" for n in range(self._job.num_nodes) if str(n) not in placed]

    def lacks_machines(self) -> bool:
        """Whether a node waits for a host."""
        return bool(self.waiting())

    def report_progress(self, progress: dict[str, object]) -> None:
        """Nobody looks."""

    def ending(self) -> Ending:
        """Stop the nodes that are left, and say how each one ended."""
        assert self._job is not None
        codes = {node: self._state(node).get("exit_code") for node in range(self._job.num_nodes)}
        self.stop()
        ends = [
            PodEnd(
                f"{self._job.name}-{node}",
                node,
                self.hosts().get(str(node), ""),
                code,
                "",
                "",
                str(self._state(node).get("ended", "")),
            )
            for node, code in codes.items()
            if code is not None
        ]
        return describe_ending(ends, [], [])

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after the job's grace; a host that is gone is not waited for."""
        job = self._job
        if job is None:
            return
        for node in self.hosts():
            state = self._state(int(node))
            if "pid" in state and "exit_code" not in state:
                with suppress(ProcessLookupError):
                    os.kill(state["pid"], signal.SIGTERM)
        grace = job.pods.grace_s if job.pods else 30
        deadline = time.monotonic() + grace
        while self._is_running() and time.monotonic() < deadline:
            time.sleep(0.05)
        for host in self._reachable():
            host.signal(signal.SIGKILL)

    def hosts(self) -> dict[str, str]:
        """Node → host, of the nodes that have one."""
        return dict(_read(self._path / "placed.json"))

    @property
    def _path(self) -> Path:
        assert self._job is not None
        return self._folder / "jobs" / self._job.name

    def _state(self, node: int) -> dict[str, Any]:
        """Pid and exit code of a node; of one whose host cannot be reached nothing is known."""
        up = {host.name for host in self._reachable()}
        return _read(self._path / f"node-{node}.json") if self.hosts().get(str(node)) in up else {}

    def _reachable(self) -> list[Host]:
        """The job's hosts that still answer."""
        names = set(self.hosts().values())
        return [host for host in read_hosts(self._folder) if host.name in names and host.is_up]

    def _is_running(self) -> bool:
        """Whether a node may still write; its agent ends with the last of it."""
        return any(host.processes() for host in self._reachable())

    def _place(self) -> bool:
        """Start nodes on free hosts; whether each has one."""
        job = self._job
        assert job is not None
        placed = self.hosts()
        excluded = job.pods.excluded_hosts if job.pods else ()
        if len(placed) < job.num_nodes:
            free = [
                host
                for host in read_hosts(self._folder)
                if host.is_up and host.name not in excluded and host.name not in placed.values()
            ]
            if len(free) < job.num_nodes:
                return False  # all or none, as a gang
            chosen = free[: job.num_nodes]
            write_atomically(
                self._path / "placed.json", json.dumps({str(n): host.name for n, host in enumerate(chosen)})
            )
            port = free_port() if not chosen[0].has_namespace else 29400
            for node, host in enumerate(chosen):
                self._start(job, node, host, f"{chosen[0].address}:{port}")
        return True

    def _start(self, job: TrainingJob, node: int, host: Host, endpoint: str) -> None:
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PET_NNODES": str(job.num_nodes),
            "PET_NPROC_PER_NODE": str(job.procs_per_node),
            "PET_NODE_RANK": str(node),
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": endpoint,
            "PET_RDZV_ID": job.name,
            # In a namespace it cannot tell by the address whether it is on the host that serves.
            "PET_RDZV_CONF": f"is_host={int(node == 0)}",
            "PET_LOCAL_ADDR": host.address,
            "GLOO_SOCKET_IFNAME": host.interface,
            "SHARDLINE_ATTEMPT": str(job.attempt),
            "SHARDLINE_NODE": str(node),
            "SHARDLINE_STAY_S": "60",
            "SHARDLINE_WATCH_LAUNCHER": "1",
            "SHARDLINE_HEARTBEAT_TIMEOUT_S": "60",
            **(job.pods.env if job.pods else {}),
            **self._env,
        }
        attempt = job.run_folder / "attempts" / str(job.attempt)
        attempt.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-u", "-m", "training.node", str(job.run_folder)]
        agent(host, self._path / f"node-{node}.json", env, attempt / f"node-{node}.log", command)

    def log(self, node: int) -> str:
        """The end of a node's log."""
        assert self._job is not None
        return tail(self._job.run_folder / "attempts" / str(self._job.attempt) / f"node-{node}.log", 40)


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content
