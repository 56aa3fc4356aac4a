"""The mark that everything of a suite carries in its name, and the sweep of what dead suites left."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from training.guard.beat import read_beats

_PREFIX = "slf-"

_PATIENCE_S = 5.0

_COLD_S = 60.0

_CGROUPS = Path("/sys/fs/cgroup")


def own_mark() -> str:
    """`slf-<pid>-<birth>` of this process: the same as long as it lives, and of no other process."""
    return _mark_of(os.getpid())


def sweep() -> None:
    """Remove what suites left that were killed: processes, namespaces, mounts, control groups, folders."""
    for mark in sorted(_marks()):
        if not _is_alive(mark):
            for folder in _mounts(mark):
                # Or its processes could not even be killed.
                subprocess.run(["fsfreeze", "--unfreeze", folder], capture_output=True)
            remove_hosts(mark)
            for folder in reversed(_mounts(mark)):
                subprocess.run(["umount", "--lazy", folder], capture_output=True)
            for path in _folders(mark):
                shutil.rmtree(path, ignore_errors=True)
    for folder in Path("/dev/shm").glob("shardline-beats-*"):
        if _is_of_the_dead(folder):
            shutil.rmtree(folder, ignore_errors=True)


def remove_hosts(mark: str) -> None:
    """Remove a suite's processes, namespaces and control groups, in the order in which they can be removed."""
    for group in _groups(mark):
        _end(group)
    for name in _namespaces(mark):
        pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
        _kill(int(pid) for pid in pids)
    for name in _namespaces(mark):
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    for group in _groups(mark):
        _end(group)
        _remove(group)


def _mark_of(pid: int) -> str:
    # Ticks from the boot on, which no setting of the clock changes: the 22nd field, counted behind the name.
    born = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{_PREFIX}{pid}-{born}"


def _is_alive(mark: str) -> bool:
    try:
        return _mark_of(int(mark.split("-")[1])) == mark
    except OSError:
        return False


def _marks() -> set[str]:
    names = [*_namespaces(), *_mounts(), *map(str, [*_groups(), *_folders()])]
    return {found.group() for name in names if (found := re.search(rf"{_PREFIX}\d+-\d+", name))}


def _namespaces(mark: str = _PREFIX) -> list[str]:
    folder = Path("/run/netns")
    return [path.name for path in folder.glob(f"{mark}*")] if folder.is_dir() else []


def _folders(mark: str = _PREFIX) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"{mark}*"))


def _is_of_the_dead(beats: Path) -> bool:
    """Whether a node was killed, with its ranks, before it could remove the folder of their beats."""
    found = read_beats(beats)
    if not found or any(psutil.pid_exists(beat.pid) for beat in found):
        return False
    return time.time() - max(path.stat().st_mtime for path in beats.iterdir()) > _COLD_S


def _mounts(mark: str = _PREFIX) -> list[str]:
    """Mount points with a folder of the suite in their path, in the order of mounting."""
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return [point for point in points if f"/{mark}" in point]


def _groups(mark: str = _PREFIX) -> list[Path]:
    """Control groups, the inner ones first."""
    tops = [*_CGROUPS.glob(f"{mark}*"), *_CGROUPS.glob(f"*/{mark}*")]
    found = [path for top in tops for path in (top, *top.rglob("*")) if path.is_dir()]
    return sorted(set(found), key=lambda path: -len(path.parts))


def _end(group: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        _kill(int(pid) for pid in (group / "cgroup.procs").read_text().split())


def _remove(group: Path) -> None:
    """The kernel takes a while to see that the last process of a group has gone."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.02)


def _kill(pids) -> None:
    killed = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            killed.append(psutil.Process(pid))
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _PATIENCE_S
    while any(_runs(process) for process in killed) and time.monotonic() < deadline:
        time.sleep(0.02)


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
