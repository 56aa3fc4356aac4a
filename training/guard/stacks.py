"""Writes down where the threads of a node's ranks are, before the ranks are killed."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from training.guard.warm import STACK_SIGNAL, stacks_path

_ANSWER_S = 1.0
"""For a rank to write its stacks; one that is stopped, or hangs in the kernel, does not."""

_PY_SPY_S = 10.0

_FLIGHT_RECORDER = "nccl-dump-"
"""Pipes by which NCCL's flight recorder is asked for the last collectives; see `flight_recorder_env`."""


def flight_recorder_env(beats: Path, stacks: Path) -> dict[str, str]:
    """Where NCCL's flight recorder writes, and is asked to; of no effect without NCCL."""
    return {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(beats / _FLIGHT_RECORDER),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(stacks / "nccl-rank-"),
        "TORCH_FR_DUMP_TEMP_FILE": str(stacks / "nccl-rank-"),
    }


def write_stacks(pids: Mapping[int, int], beats: Path, folder: Path) -> list[Path]:
    """Write `rank-<n>.txt` for every rank.

    Args:
        pids: By global rank.
        beats: The node's folder of beats.
        folder: Where to write.

    Returns:
        The files.
    """
    for rank, pid in pids.items():
        _ask_flight_recorder(beats, rank)
        with suppress(ProcessLookupError):
            os.kill(pid, STACK_SIGNAL)
    time.sleep(_ANSWER_S)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for rank, pid in pids.items():
        own = _own_words(stacks_path(beats, rank))
        text = f"{kernel_view(pid)}\n{own or _seen_from_outside(pid)}"
        path = folder / f"rank-{rank}.txt"
        path.write_text(text)
        written.append(path)
    return written


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped, as by SIGSTOP or a debugger."""
    return state(pid)[:1] in ("T", "t")


def state(pid: int) -> str:
    """The process's state as the kernel names it, as `S (sleeping)`; empty if there is none."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("State:"):
                return line.split(maxsplit=1)[1]
    return ""


def kernel_view(pid: int) -> str:
    """State of the process, and where in the kernel it waits."""
    lines = [f"process {pid}: {state(pid) or 'gone'}"]
    for name in ("wchan", "stack"):
        with suppress(OSError):
            if text := Path(f"/proc/{pid}/{name}").read_text(errors="replace").strip("0\n"):
                lines.append(f"{name}: {text}")
    return "\n".join(lines) + "\n"


def _own_words(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _seen_from_outside(pid: int) -> str:
    """The stacks as py-spy reads them from the process's memory, which needs nothing of the process itself."""
    beside = Path(sys.executable).with_name("py-spy")
    command = str(beside) if beside.is_file() else shutil.which("py-spy")
    if command is None:
        return "no stacks: the process did not answer, and py-spy is not installed\n"
    try:
        done = subprocess.run(
            [command, "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=_PY_SPY_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no stacks: py-spy failed: {error}\n"
    return done.stdout or f"no stacks: py-spy says: {done.stderr.strip()}\n"


def _ask_flight_recorder(beats: Path, rank: int) -> None:
    pipe = beats / f"{_FLIGHT_RECORDER}{rank}.pipe"
    with suppress(OSError):
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        os.write(descriptor, b"1")
        os.close(descriptor)
