"""Entry point of a node: `python -m training.node <run folder>`, in a pod or as a local process.

Runs the node's ranks, attempt after attempt as the supervisor orders. What torchrun needs comes from PET_*
variables, as the Kubeflow operators set them; the rest comes from the run folder.
"""

# Ranks import this file again before they begin, so what is heavy is imported where it is used.
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from training.early_stop import leave_at_once
from training.errors import EXIT_INTERRUPTED, EXIT_INVALID, UserError
from training.guard.warm import warm_up
from training.heartbeat import call_when_silent
from training.orders import Orders
from training.run_folder import RunFolder
from training.store import write_atomically

_MALLOC_THRESHOLD = 2**18
"""Bytes from which on glibc asks the system for a block, and gives it back when it is freed."""

_ACCELERATORS = ("nvidia[0-9]*", "kfd", "neuron[0-9]*", "accel/accel[0-9]*")
"""Device files; torch would tell for certain, but takes seconds to import, in which the ranks' own imports
begin."""

_LOOK_S = 0.1


def main(run_folder: str) -> int:
    """Run this node's ranks to their end; returns the node's exit code."""
    leave_at_once()  # until ranks have started, to which a stop is passed on
    run = RunFolder.at(run_folder)
    attempt = int(os.environ.get("SHARDLINE_ATTEMPT", "1"))
    node = int(os.environ.get("PET_NODE_RANK", os.environ.get("SHARDLINE_NODE", "0")))
    try:
        config = run.config()
    except UserError as error:
        return _refuse(run.attempt(attempt), node, str(error))
    if not _has_accelerator():
        ranks = os.environ.get("PET_NPROC_PER_NODE", "1")
        _tune_for_cpu(
            int(ranks) if ranks.isdigit() else 1,
            memory_is_short=config.training.activation_checkpointing == "full",
        )
    # Bars of lm-eval and others, which a log is no place for. Read when tqdm is imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    warm_up(run)
    if "SHARDLINE_WATCH_LAUNCHER" in os.environ:
        call_when_silent(run.launcher_heartbeat, float(os.environ["SHARDLINE_HEARTBEAT_TIMEOUT_S"]), _leave)
    from training.guard.attempt import NodeAttempt

    while True:
        at_work = NodeAttempt(run, attempt, node)
        code = at_work.run_ranks()
        if code in (0, EXIT_INTERRUPTED) or at_work.is_told_to_stop:
            return code
        ordered = _wait_for_order(run, attempt, code)
        if ordered is None:
            return code
        attempt = ordered
        leave_at_once()


def _wait_for_order(run: RunFolder, attempt: int, code: int) -> int | None:
    """The attempt to run next in this place; None: leave."""
    stays_s = float(os.environ.get("SHARDLINE_STAY_S", "0"))

    def leave(signum: int, frame: FrameType | None) -> None:
        sys.exit(code)

    signal.signal(signal.SIGTERM, leave)
    orders, deadline = Orders(run.job_path), time.monotonic() + stays_s
    while time.monotonic() < deadline:
        ordered = orders.attempt()
        if ordered > attempt:
            return None if orders.says_leave() else ordered
        time.sleep(_LOOK_S)
    return None


def _refuse(attempt: Path, node: int, sentence: str) -> int:
    """Tell why no rank can start, as ranks do."""
    print(sentence, file=sys.stderr, flush=True)
    record = {"time": time.time(), "rank": None, "exit_code": EXIT_INVALID, "message": sentence, "traceback": ""}
    with suppress(OSError):
        write_atomically(attempt / "errors" / f"node-{node}.json", json.dumps(record))
    return EXIT_INVALID


def _leave() -> None:
    print("nothing was heard of the launcher: the ranks save and leave", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


def _has_accelerator() -> bool:
    return any(next(Path("/dev").glob(pattern), None) for pattern in _ACCELERATORS)


def _tune_for_cpu(num_ranks: int, *, memory_is_short: bool) -> None:
    """Set what ranks on a CPU inherit, unless it is set already.

    Args:
        num_ranks: Of this node.
        memory_is_short: Give freed memory back to the system at once. glibc keeps it otherwise, up to a quarter of
            all that a rank has (measured: 2.8 against 2.2 GiB), and getting it anew costs time.
    """
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # torchrun's own default is one thread a rank.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, num_cores // num_ranks)))
    # Large tensors come from fresh pages each time; huge pages mean a fraction of the page faults.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if memory_is_short:
        for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
            os.environ.setdefault(name, str(_MALLOC_THRESHOLD))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
