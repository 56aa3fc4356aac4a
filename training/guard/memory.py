"""Whether the kernel killed a process of this container because its memory was used up."""

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def oom_kills(membership: Path = Path("/proc/self/cgroup"), root: Path = _CGROUPS) -> int:
    """How many processes of this cgroup the kernel has killed for want of memory; 0 where it does not say.

    Args:
        membership: The kernel's list of this process's cgroups.
        root: Where cgroups are mounted.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # In a container the path is that of the host, but its own group is mounted as the root.
        v2 = [root / path.lstrip("/") / "memory.events", root / "memory.events"]
        v1 = [
            root / "memory" / path.lstrip("/") / "memory.oom_control",
            root / "memory" / "memory.oom_control",
        ]
        places = v2 if controllers == "" else v1 if "memory" in controllers.split(",") else []
        for place in places:
            if (count := _count(place)) is not None:
                return count
    return 0


def _count(path: Path) -> int | None:
    try:
        fields = dict(line.split() for line in path.read_text().splitlines())
    except (OSError, ValueError):
        return None
    return int(fields["oom_kill"]) if "oom_kill" in fields else None
