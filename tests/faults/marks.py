"""The mark that everything of a suite carries in its name, and the sweep of what dead suites left."""

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil

_PREFIX = "slf-"

_PATIENCE_S = 5.0

_CGROUPS = Path("/sys/fs/cgroup")


def own_mark() -> str:
    """`slf-<pid>-<birth>` of this process: the same as long as it lives, and of no other process."""
    return _mark_of(psutil.Process())


def sweep() -> None:
    """Remove what suites left that were killed: processes, namespaces, mounts, cgroups."""
    for mark in sorted(_marks()):
        if not _is_alive(mark):
            remove_all(mark)


def remove_all(mark: str) -> None:
    """Remove everything of a suite, in the order in which it can be removed."""
    for folder in _mounts(mark):
        subprocess.run(["fsfreeze", "--unfreeze", folder], capture_output=True)
    for group in _groups(mark):
        _end(group)
    for name in _namespaces(mark):
        pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
        _kill(int(pid) for pid in pids)
    for folder in reversed(_mounts(mark)):
        subprocess.run(["umount", "--lazy", folder], capture_output=True)
    for name in _namespaces(mark):
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    for group in _groups(mark):
        _end(group)
        _remove(group)


def _mark_of(process: psutil.Process) -> str:
    return f"{_PREFIX}{process.pid}-{int(process.create_time())}"


def _is_alive(mark: str) -> bool:
    try:
        return _mark_of(psutil.Process(int(mark.split("-")[1]))) == mark
    except psutil.NoSuchProcess:
        return False


def _marks() -> set[str]:
    names = [*_namespaces(), *_mounts(), *(str(group) for group in _groups())]
    return {found.group() for name in names if (found := re.search(rf"{_PREFIX}\d+-\d+", name))}


def _namespaces(mark: str = _PREFIX) -> list[str]:
    folder = Path("/run/netns")
    return [path.name for path in folder.glob(f"{mark}*")] if folder.is_dir() else []


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
