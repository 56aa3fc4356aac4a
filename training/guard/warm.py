"""Ranks as forks of one process that has imported all they need.

A rank spends seconds on imports before it does anything. One process of the node imports for all of its ranks,
while the node itself still starts; so a restart in the same place costs a fork, not seconds.
"""

import faulthandler
import json
import multiprocessing
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import TextIO

from training.guard.beat import FOLDER_VARIABLE
from training.processes import die_with_parent
from training.run_folder import RunFolder

PARENT_GONE = 255
"""What multiprocessing gives as a rank's exit code when the process that it was forked from is gone."""

MODULES_VARIABLE = "SHARDLINE_IMPORTS"
"""Names of the modules to import, with spaces between them."""

JOB_VARIABLE = "SHARDLINE_JOB"
"""In the environment of every process of a job: its folder, by which leftovers are found."""

STACK_SIGNAL = signal.SIGUSR2
"""Lets a rank write down where all of its threads are."""

_ENTRY = {
    "training": "training.rank",
    "evaluation": "training.measure.rank",
    "health": "training.health.rank",
}
"""What ranks import for a job's purpose."""


def warm_up(run: RunFolder) -> None:
    """Start the process that imports; comes back at once.

    What ranks find in their environment when they import, such as OMP_NUM_THREADS, has to be set before.
    """
    os.environ[JOB_VARIABLE] = str(run.job_path)
    # Or a mere look whether there is a GPU would make CUDA useless in the forks.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    modules = ["training.worker", _ENTRY[run.purpose], _architecture(run)]
    os.environ[MODULES_VARIABLE] = " ".join(module for module in modules if module is not None)
    multiprocessing.set_forkserver_preload(["training.guard.preload"])
    ensure_running()


def start_rank(folder: Path, env: dict[str, str], out: str, err: str) -> ForkServerProcess:
    """Start a rank.

    Args:
        folder: The job's.
        env: What its environment has beside the node's.
        out: File that its standard output is appended to.
        err: Likewise of its errors.
    """
    context = multiprocessing.get_context("forkserver")
    node = {"SHARDLINE_NODE_PID": str(os.getpid())}
    process = context.Process(target=_rank, args=(str(folder), {**os.environ, **env, **node}, out, err))
    process.start()
    return process


def _rank(folder: str, env: dict[str, str], out: str, err: str) -> None:
    # The process that imported keeps the environment of its start, in which an earlier attempt's would be missing.
    os.environ.clear()
    os.environ.update(env)
    # Without it the node could neither see nor end this rank, and would start the next one beside it.
    die_with_parent(number=signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    for path, stream in ((out, sys.stdout), (err, sys.stderr)):
        _redirect(path, stream)
    if sys.platform == "linux":
        Path("/proc/self/comm").write_text(f"rank-{env['RANK']}")  # as `ps -e` and `pkill` know it
    if _is_poisoned():
        os.execv(sys.executable, [sys.executable, "-u", "-m", "training.worker", folder])
    if FOLDER_VARIABLE in env:
        stacks = stacks_path(Path(env[FOLDER_VARIABLE]), int(env["RANK"])).open("w")
        faulthandler.register(STACK_SIGNAL, stacks, all_threads=True)
    from training import worker

    sys.exit(worker.main(folder))


def stacks_path(beats: Path, rank: int) -> Path:
    """Where a rank writes its stacks at `STACK_SIGNAL`."""
    return beats / f"stacks-{rank}"


def _redirect(path: str, stream: TextIO) -> None:
    stream.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, stream.fileno())
    os.close(file)
    stream.reconfigure(line_buffering=True)  # type: ignore[attr-defined]


def _is_poisoned() -> bool:
    """Whether something imported has used CUDA already, which then cannot be used in a fork."""
    import torch

    return torch.cuda._is_in_bad_fork()


def _architecture(run: RunFolder) -> str | None:
    """The module of the run's model, as far as transformers has it."""
    with suppress(OSError, ValueError, KeyError):
        model = Path((run.path / "inputs" / "model").read_text())
        kind = json.loads((model / "config.json").read_text())["model_type"].replace("-", "_")
        if kind.isidentifier():
            return f"transformers.models.{kind}.modeling_{kind}"
    return None
