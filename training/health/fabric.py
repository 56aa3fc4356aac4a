"""Checks of InfiniBand, RoCE and EFA ports, and of the locked memory that they need."""

import resource
from pathlib import Path
from typing import Any

from training.health.policy import Thresholds
from training.health.result import CheckResult, Status

_GIB = 2**30


def check_fabric(sys: Path = Path("/sys")) -> CheckResult:
    """Look at every port in /sys/class/infiniband.

    One that was switched off on purpose is left out; an Ethernet port without a link may be a spare, and warns.

    Args:
        sys: Where sysfs is mounted.
    """
    ports = list(_ports(sys))
    used = [port for port in ports if "disabled" not in port["phys_state"].lower()]
    if not used:
        return CheckResult("fabric", "not_present", "no InfiniBand, RoCE or EFA port")
    down = [port for port in used if "ACTIVE" not in port["state"]]
    texts = [f"{port['name']} is {port['state']} ({port['phys_state']})" for port in down]
    is_spare = all(port["link_layer"] == "Ethernet" for port in down)
    status: Status = "ok" if not down else "warning" if is_spare else "failed"
    text = "; ".join(texts) or f"{len(used)} ports are active: {', '.join(port['name'] for port in used)}"
    advice = "check cable and switch; on EC2 stop and start the instance" if down else ""
    return CheckResult("fabric", status, text, {"num_ports": len(used), "num_down": len(down)}, advice)


def check_memlock(limits: Thresholds, sys: Path = Path("/sys"), locked: int | None = None) -> CheckResult:
    """Compare the limit of locked memory with what RDMA needs, where there is a device that does it.

    Args:
        limits: Thresholds.
        sys: Where sysfs is mounted.
        locked: The limit in bytes, -1 for none; by default this process's.
    """
    if not list(_ports(sys)):
        return CheckResult("memlock", "not_present", "no device that needs locked memory")
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if locked is None else locked
    if soft in (-1, resource.RLIM_INFINITY):
        return CheckResult("memlock", "ok", "no limit")
    gib = soft / _GIB
    if gib >= limits.memlock_gib:
        return CheckResult("memlock", "ok", f"{gib:.1f} GiB", {"gib": gib})
    text = f"{gib:.3g} GiB may be locked, RDMA needs {limits.memlock_gib:g} or more"
    return CheckResult("memlock", "warning", text, {"gib": gib}, "raise the limit: ulimit -l unlimited")


def _ports(sys: Path) -> list[dict[str, Any]]:
    folders = sorted((sys / "class" / "infiniband").glob("*/ports/*"))
    keys = ("state", "phys_state", "link_layer")
    return [
        {"name": f"{folder.parts[-3]}/{folder.name}", **{key: _read(folder / key) for key in keys}}
        for folder in folders
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
