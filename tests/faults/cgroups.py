"""Limits of memory and processor time for a host or a rank, by control groups of version 1 or 2."""

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")

_PERIOD_US = 100_000


class Cgroup:
    """A control group.

    Args:
        name: Path below the root, such as `slf-1-2/a`.
    """

    def __init__(self, name: str) -> None:
        self._is_v2 = (_ROOT / "cgroup.controllers").is_file()
        if self._is_v2:
            self._make_parents(name)
        self.folders = {
            controller: (_ROOT if self._is_v2 else _ROOT / controller) / name for controller in ("memory", "cpu")
        }
        for folder in self.folders.values():
            folder.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def _make_parents(name: str) -> None:
        """Version 2 lends controllers to the groups below only where it is told to."""
        for parent in reversed(Path(name).parents):
            (_ROOT / parent).mkdir(exist_ok=True)
            (_ROOT / parent / "cgroup.subtree_control").write_text("+memory +cpu")

    def add(self, pid: int) -> None:
        """Move a process, with all its threads."""
        for folder in set(self.folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    def limit_memory(self, num_bytes: int | None) -> None:
        """Most bytes that all its processes may have; past them the kernel kills one. None: no limit."""
        if self._is_v2:
            self._write("memory", "memory.max", "max" if num_bytes is None else str(num_bytes))
            self._write("memory", "memory.swap.max", "0")
        else:
            self._write("memory", "memory.limit_in_bytes", "-1" if num_bytes is None else str(num_bytes))

    def limit_cpu(self, share: float | None) -> None:
        """Share of one core that it may have. None: no limit."""
        quota = None if share is None else int(share * _PERIOD_US)
        if self._is_v2:
            self._write("cpu", "cpu.max", f"{quota or 'max'} {_PERIOD_US}")
        else:
            self._write("cpu", "cpu.cfs_period_us", str(_PERIOD_US))
            self._write("cpu", "cpu.cfs_quota_us", str(quota or -1))

    def memory_bytes(self) -> int:
        """What its processes have now."""
        name = "memory.current" if self._is_v2 else "memory.usage_in_bytes"
        return int((self.folders["memory"] / name).read_text())

    def _write(self, controller: str, name: str, value: str) -> None:
        (self.folders[controller] / name).write_text(value)
