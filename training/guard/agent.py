"""torchrun's agent of a node, with ranks that are forked from a warm process.

Ranks of a group of which one has failed get no grace: they would only wait for it.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from training.errors import EXIT_INTERRUPTED
from training.guard.warm import start_rank

_KILL_S = 30.0
"""After SIGKILL, until a rank is given up: one that waits for a hung disk in the kernel cannot be ended."""


class RankAgent(SimpleElasticAgent):
    """Meets the other nodes, starts this node's ranks, and ends what is left of them when one fails.

    Args:
        spec: As torchrun has it; no restarts.
        job_path: The job's folder, for the ranks.
        logs: Folder of the ranks' logs.
        save_grace_s: Seconds that ranks have to save after SIGTERM.
        on_start: Called with the environment of every rank right before they start, by global rank.
        on_started: Called with their pids, by global rank.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        job_path: Path,
        logs: Path,
        save_grace_s: int,
        on_start: Callable[[dict[int, dict[str, str]]], None],
        on_started: Callable[[dict[int, int]], None],
    ) -> None:
        super().__init__(spec, shutdown_timeout=save_grace_s)
        self._job_path = job_path
        self._logs = logs
        self._on_start = on_start
        self._on_started = on_started
        self._ranks: dict[int, ForkServerProcess] = {}
        self._tails: list[TailLog] = []

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        envs = {worker.global_rank: self._environment(worker_group, worker) for worker in worker_group.workers}
        self._logs.mkdir(parents=True, exist_ok=True)
        self._on_start(envs)
        files = {kind: {r: str(self._logs / f"rank-{r}.{kind}") for r in envs} for kind in ("out", "err")}
        for rank, env in envs.items():
            self._ranks[rank] = start_rank(self._job_path, env, files["out"][rank], files["err"][rank])
        prefixes = {rank: f"[rank {rank}] " for rank in envs}
        for kind, console in (("out", sys.stdout), ("err", sys.stderr)):
            self._tails.append(TailLog("rank", files[kind], console, prefixes).start())
        pids = {rank: process.pid or 0 for rank, process in self._ranks.items()}
        self._on_started(pids)
        return {worker.local_rank: pids[worker.global_rank] for worker in worker_group.workers}

    def _environment(self, group: WorkerGroup, worker: Any) -> dict[str, str]:
        """What torchrun gives a rank."""
        spec = group.spec
        return {
            "RANK": str(worker.global_rank),
            "LOCAL_RANK": str(worker.local_rank),
            "GROUP_RANK": str(group.group_rank),
            "WORLD_SIZE": str(worker.world_size),
            "LOCAL_WORLD_SIZE": str(spec.local_world_size),
            "GROUP_WORLD_SIZE": str(group.group_world_size),
            "MASTER_ADDR": str(group.master_addr),
            "MASTER_PORT": str(group.master_port),
            "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
            "TORCHELASTIC_USE_AGENT_STORE": str(spec.rdzv_handler.use_agent_store),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        }

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        codes = {rank: process.exitcode for rank, process in self._ranks.items()}
        if any(codes.values()):
            return RunResult(state=WorkerState.FAILED, failures=self._failures(worker_group, codes))
        if all(code == 0 for code in codes.values()):
            self._close()
            return RunResult(state=WorkerState.SUCCEEDED, return_values=dict.fromkeys(codes))
        return RunResult(state=WorkerState.HEALTHY)

    def _failures(self, group: WorkerGroup, codes: dict[int, int | None]) -> dict[int, ProcessFailure]:
        local = {worker.global_rank: worker.local_rank for worker in group.workers}
        return {
            rank: ProcessFailure(local[rank], self._ranks[rank].pid or 0, code, error_file="")
            for rank, code in codes.items()
            if code
        }

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        ended = {process.exitcode for process in self._ranks.values()} - {None}
        if ended <= {0, EXIT_INTERRUPTED}:
            self._shutdown(signal.SIGTERM, self._shutdown_timeout)  # all leave, after a save
        else:
            self._shutdown(signal.SIGKILL)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: float = _KILL_S) -> None:
        left = [process for process in self._ranks.values() if process.is_alive()]
        for number, patience_s in ((death_sig, timeout), (signal.SIGKILL, _KILL_S)):
            for process in left:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(process.pid or 0, number)
            deadline = time.monotonic() + patience_s
            for process in left:
                process.join(max(0.0, deadline - time.monotonic()))
            left = [process for process in left if process.is_alive()]
        self._close()

    def _close(self) -> None:
        for tail in self._tails:
            tail.stop()
        self._tails = []
