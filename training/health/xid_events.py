"""XIDs as NVML tells them, for containers, which do not see the kernel's log.

`python -m training.health.xid_events` prints each as it comes, as a line of the kernel log. A process of its own,
because a driver that is stuck does not come back.
"""

import importlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from training.processes import die_with_parent

_XID_EVENT = 0x8
"""nvmlEventTypeXidCriticalError: in spite of its name, every XID."""

_WAIT_MS = 60_000


class XidEvents:
    """Follows them in a thread, until it is stopped.

    Args:
        on_line: Called with each line.
        command: By default this module.
    """

    def __init__(self, on_line: Callable[[str], None], command: Sequence[str] = ()) -> None:
        self._on_line = on_line
        self._command = list(command) or [sys.executable, "-m", "training.health.xid_events"]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Begin; where NVML cannot be had, the process ends and nothing is told."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        threading.Thread(target=self._read, args=(self._process,), name="xid-events", daemon=True).start()

    def stop(self) -> None:
        """End, without waiting: a process that hangs in the driver does not end."""
        if self._process is not None:
            self._process.kill()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._on_line(line.rstrip("\n"))
        process.wait()


def xid_lines(nvml: Any) -> Iterator[str]:
    """Lines of XIDs of all GPUs, as they come; ends where no GPU tells of them.

    Args:
        nvml: The module `pynvml`.
    """
    nvml.nvmlInit()
    events = nvml.nvmlEventSetCreate()
    watched = 0
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(index), _XID_EVENT, events)
            watched += 1
        except nvml.NVMLError:
            continue  # a GPU that tells of none, or that is lost: the other checks see that
    while watched:
        try:
            event = nvml.nvmlEventSetWait_v2(events, _WAIT_MS)
        except nvml.NVMLError as error:
            if type(error).__name__ == "NVMLError_Timeout":
                continue
            return
        yield f"NVRM: Xid (PCI:{_address(nvml, event.device)}): {event.eventData}, told by NVML"


def _address(nvml: Any, device: Any) -> str:
    try:
        bus = nvml.nvmlDeviceGetPciInfo(device).busId
    except nvml.NVMLError:
        return "0"
    return bus.decode() if isinstance(bus, bytes) else str(bus)


def main() -> int:
    """Print them; returns the exit code."""
    die_with_parent()
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return 0
    for line in xid_lines(nvml):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
