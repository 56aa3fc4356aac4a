"""Checks how much memory the machine, or the container, has to give."""

from pathlib import Path

import psutil

from training.health.policy import Thresholds
from training.health.result import CheckResult

_GIB = 2**30


def check_memory(limits: Thresholds, cgroup: Path = Path("/sys/fs/cgroup")) -> CheckResult:
    """Compare what is available with the whole, of the machine or of the container, where that has less.

    Args:
        limits: Thresholds.
        cgroup: The container's control group.
    """
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    if (container := _container(cgroup)) is not None and container[0] < total:
        total, available = container[0], min(available, container[1])
    share = available / total
    text = f"{available / _GIB:,.1f} of {total / _GIB:,.1f} GiB available"
    measured = {"available_bytes": available, "total_bytes": total}
    if share < limits.available_memory:
        text += f", less than {100 * limits.available_memory:g} %"
        return CheckResult("memory", "warning", text, measured, "end what else runs here")
    return CheckResult("memory", "ok", text, measured)


def _container(cgroup: Path) -> tuple[int, int] | None:
    """Limit and availability in bytes, by version 2 or 1 of control groups; None without a limit."""
    for limit, used in (
        (cgroup / "memory.max", cgroup / "memory.current"),
        (cgroup / "memory" / "memory.limit_in_bytes", cgroup / "memory" / "memory.usage_in_bytes"),
    ):
        try:
            most, now = int(limit.read_text()), int(used.read_text())
            counts = dict(line.split() for line in (limit.parent / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue  # no such version, or no limit (`max`)
        # Cached files are counted as used, and given up when memory is asked for.
        cached = int(counts.get("inactive_file", 0)) + int(counts.get("active_file", 0))
        return most, max(0, most - now + cached)
    return None
