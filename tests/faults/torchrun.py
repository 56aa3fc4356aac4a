"""Plain torchrun under a fault: how long until it steps again."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from tests.faults.hosts import Host, agent
from training.run_folder import RunFolder

_START_S = 180.0

_PORT = 29500


class TorchrunJob:
    """`torchrun --max-restarts=3` on one or several hosts.

    Args:
        folder: Of its own.
        run: Whose model and data it takes.
        hosts: One agent each.
        ranks: On each.
        nnodes: As torchrun takes it, such as `1:2`.
        group_timeout_s: Of the process group; torch's default is half an hour.
    """

    def __init__(
        self,
        folder: Path,
        run: RunFolder,
        hosts: Sequence[Host],
        *,
        ranks: int,
        nnodes: str,
        group_timeout_s: float = 1800,
    ) -> None:
        self.folder = folder
        self.hosts = hosts
        folder.mkdir(parents=True)
        for number, host in enumerate(hosts):
            command = [
                *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nnodes}"),
                *(f"--nproc-per-node={ranks}", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=plain"),
                *(f"--rdzv-endpoint={hosts[0].address}:{_PORT}", f"--rdzv-conf=is_host={int(number == 0)}"),
                *(f"--local-addr={host.address}", "-m", "tests.faults.torchrun_side"),
                *(str(run.path), str(folder), str(group_timeout_s)),
            ]
            env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": host.interface}
            agent(host, folder / f"agent-{host.name}.json", env, folder / f"agent-{host.name}.log", command)

    def recovery_s(
        self, fault: Callable[["TorchrunJob"], object], *, after_step: int, within_s: float
    ) -> float | None:
        """Seconds from a fault to the next step; None if none came in time. Ends the job.

        Args:
            fault: Injects it.
            after_step: When.
            within_s: How long to wait.
        """
        try:
            self._wait(lambda: any(line["step"] >= after_step for line in self.steps()), _START_S)
            before = {line["pid"] for line in self.steps()}
            fault(self)
            at = time.time()
            # Steps that were on their way do not count, nor those of a half that goes on alone by itself.
            again = self._wait(
                lambda: [line["time"] for line in self.steps() if line["pid"] not in before], within_s
            )
            return again[0] - at if again else None
        finally:
            for host in self.hosts:
                host.signal(signal.SIGCONT)
                host.signal(signal.SIGKILL)

    def steps(self) -> list[dict[str, float]]:
        """Steps so far, in the order of time."""
        path = self.folder / "steps.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def rank(self, number: int) -> psutil.Process:
        """The process of a rank."""
        for host in self.hosts:
            for process in host.processes():
                if process.environ().get("RANK") == str(number):
                    return process
        raise AssertionError(f"torchrun has no rank {number}: {self._logs()}")

    def _wait(self, condition, seconds: float):
        deadline = time.monotonic() + seconds
        while not (result := condition()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return result

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self.folder.glob("agent-*.log"))
