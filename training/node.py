"""Entry point of a node: `python -m training.node <run folder>`, in a pod or as a local process.

Starts torchrun for the node's ranks. What torchrun needs comes from PET_* variables, as the Kubeflow operators
set them; the rest comes from the run folder.
"""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import FrameType

import torch
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from training.device import num_cores
from training.early_stop import leave_at_once
from training.errors import EXIT_FAILED, EXIT_INTERRUPTED
from training.exporter import serve_metrics
from training.heartbeat import call_when_silent
from training.run_folder import RunFolder
from training.store import write_atomically
from training.system_metrics import SystemMetrics

_SAVE_GRACE_S = 300
"""How long ranks may take to save after SIGTERM before torchrun kills them. A pod's grace period, where shorter,
ends it sooner."""

_MALLOC_THRESHOLD = 2**18
"""Bytes from which on glibc asks the system for a block, and gives it back when it is freed."""


def main(run_folder: str) -> int:
    """Run this node's ranks to their end; returns the node's exit code."""
    leave_at_once()  # until torchrun, which passes a stop on to the ranks that it has started
    # The second has a level of its own, at which it would explain OMP_NUM_THREADS on every node.
    for name in ("torch.distributed", "torch.distributed.run"):
        logging.getLogger(name).setLevel(logging.ERROR)
    attempt = int(os.environ.get("SHARDLINE_ATTEMPT", "1"))
    run = RunFolder.at(run_folder)
    folder = run.attempt(attempt)
    config, command, arguments = config_from_args(
        parse_args(
            [
                f"--shutdown-timeout={_SAVE_GRACE_S}",
                # Or torchrun leaves an empty folder in the temporary one, whatever it is given below.
                f"--log-dir={folder / 'logs'}",
                "-m",
                "training.worker",
                run_folder,
            ]
        )
    )
    config.logs_specs = RankLogs(folder / "logs", before_start=_stop_ranks_once)
    # torchrun's own handler would end the wait for the ranks at a second signal, and then wait for its threads.
    config.signals_to_handle = "SIGINT,SIGHUP,SIGQUIT"
    config.log_line_prefix_template = "[rank ${rank}] "
    _forget(folder, f"node-{_node_rank()}")
    # torchrun restarts in place would redo work behind the supervisor's back.
    config.max_restarts = 0
    if not torch.accelerator.is_available():
        is_short = run.config().training.activation_checkpointing == "full"
        _tune_for_cpu(config.nproc_per_node, memory_is_short=is_short)
    # So that a rank that is still importing when this process dies can tell.
    os.environ["SHARDLINE_NODE_PID"] = str(os.getpid())
    # Bars of lm-eval and others, which a log is no place for. Read when tqdm is imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    if "SHARDLINE_WATCH_LAUNCHER" in os.environ:
        call_when_silent(run.launcher_heartbeat, float(os.environ["SHARDLINE_HEARTBEAT_TIMEOUT_S"]), _leave)
    try:
        # Of the training alone: an evaluation's node would show its last figures as if they were new.
        serves = run.purpose == "training" and _node_rank() == "0"
        with (
            serve_metrics(run, attempt) if serves else nullcontext(),
            SystemMetrics(run.events, f"{run.node_prefix}{_node_rank()}", attempt, disk=run.root),
        ):
            elastic_launch(config=config, entrypoint=command)(*arguments)
    except ChildFailedError as error:
        return _record_failure(error, folder)
    except SignalException:
        return EXIT_INTERRUPTED
    return 0


def _stop_ranks_once() -> None:
    """From here on, pass the first SIGTERM on to the ranks, and ignore those after it.

    The death of a launcher comes as several: Linux signals once more with each of its threads.
    """

    def stop(signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, lambda *_: None)
        raise SignalException("told to stop", sigval=signal.Signals(signum))

    signal.signal(signal.SIGTERM, stop)


def _leave() -> None:
    print("nothing was heard of the launcher: the ranks save and leave", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


class RankLogs(LogsSpecs):
    """Logs of every rank in files of their own, `rank-<n>.out` and `rank-<n>.err`, and all on the console.

    Args:
        folder: Where the files go.
        before_start: Called right before the ranks are started.
    """

    def __init__(self, folder: Path, before_start: Callable[[], None] = lambda: None) -> None:
        super().__init__(str(folder), redirects=Std.ALL, tee=Std.ALL)
        self.folder = folder
        self._before_start = before_start

    @property
    def root_log_dir(self) -> str:
        """The folder, as torch asks for it."""
        return str(self.folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Name the files of this node's ranks, which start after this."""
        self._before_start()
        self.folder.mkdir(parents=True, exist_ok=True)
        for env in envs.values():
            _forget(self.folder.parent, f"rank-{env['RANK']}")
        out = {local: str(self.folder / f"rank-{env['RANK']}.out") for local, env in envs.items()}
        err = {local: str(self.folder / f"rank-{env['RANK']}.err") for local, env in envs.items()}
        return LogsDest(
            stdouts=out,
            stderrs=err,
            tee_stdouts=out,
            tee_stderrs=err,
            error_files=dict.fromkeys(envs, ""),
        )


def _forget(attempt: Path, who: str) -> None:
    """Remove what an earlier start of this attempt says of its end: a queue may have suspended and resumed it."""
    with suppress(OSError):
        (attempt / "errors" / f"{who}.json").unlink()


def _tune_for_cpu(num_ranks: int, *, memory_is_short: bool) -> None:
    """Set what ranks on a CPU inherit, unless it is set already.

    Args:
        num_ranks: Of this node.
        memory_is_short: Give freed memory back to the system at once. glibc keeps it otherwise, up to a quarter of
            all that a rank has (measured: 2.8 against 2.2 GiB), and getting it anew costs time.
    """
    # torchrun's own default is one thread a rank.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, num_cores() // num_ranks)))
    # Large tensors come from fresh pages each time; huge pages mean a fraction of the page faults.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if memory_is_short:
        for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
            os.environ.setdefault(name, str(_MALLOC_THRESHOLD))


def _record_failure(error: ChildFailedError, folder: Path) -> int:
    """Write which rank failed first, for the launcher; returns the exit code that tells its kind."""
    failures = sorted(error.failures.values(), key=lambda failure: failure.timestamp)
    # A rank that torchrun itself ended because another had failed is not the cause.
    causes = [f for f in failures if f.exitcode != -signal.SIGTERM] or failures
    first = causes[0]
    rank = next(rank for rank, failure in error.failures.items() if failure is first)
    record = {"time": time.time(), "rank": rank, "exit_code": first.exitcode}
    write_atomically(folder / "errors" / f"node-{_node_rank()}.json", json.dumps(record))
    if first.exitcode < 0:
        return 128 - first.exitcode
    return first.exitcode or EXIT_FAILED


def _node_rank() -> str:
    """This node's number: as the operator says, or the pod's place in the job."""
    return os.environ.get("PET_NODE_RANK", os.environ.get("SHARDLINE_NODE", "0"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
