"""Watches a machine's health while its ranks run."""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from training.events import Alert
from training.guard.place import host_name
from training.health.fabric import check_fabric
from training.health.gpu import DEVICE_FILES, check_gpus
from training.health.kernel_log import KernelLog, log_path
from training.health.policy import HealthPolicy
from training.health.result import CheckResult
from training.health.xid import Verdict, judge_xid, parse_xid, repeated
from training.health.xid_events import XidEvents

_LOOK_S = 1.0
"""Seconds between two looks at the kernel log, each of which is one system call."""

_OOM_KILL = re.compile(r"(?:Memory cgroup out|Out) of memory: Killed process (?P<process>\d+ \([^)]*\))")

_FATAL_CHECKS = ("gpus", "gpu_recovery")
"""Checks that tell, while ranks run, that the machine cannot go on. What the others find is looked at before the
next attempt; GPUs run hot under load, and have their memory in use."""

_LEFT_ASIDE = ("gpu_memory",)


class HealthWatch:
    """Follows the kernel log, and asks the driver and the ports now and then, in threads.

    A container sees no kernel log; there NVML tells of XIDs.

    Where there is neither a GPU nor a port, only the log is read: 10 µs of a core a second.

    Args:
        policy: What is judged by.
        on_alert: Called in the thread with each thing that is found; the same thing is told once.
        num_gpus: How many GPUs there have to be; None: as many as there are.
        node: The node's number, for the alerts.
        kernel_log: By default `log_path()`.
        sys: Where sysfs is mounted.
        devices: Where device files are.
    """

    def __init__(
        self,
        policy: HealthPolicy,
        on_alert: Callable[[Alert], None],
        *,
        num_gpus: int | None = None,
        node: int | None = None,
        kernel_log: Path | None = None,
        sys: Path = Path("/sys"),
        devices: Path = Path("/dev"),
    ) -> None:
        self._policy = policy
        self._on_alert = on_alert
        self._num_gpus = num_gpus
        self._node = node
        self._sys = sys
        self._devices = devices
        # Opened here, so that nothing is missed that comes before the thread runs.
        self._log = KernelLog(kernel_log or log_path(), from_end=True)
        has_gpus = any(devices.glob(DEVICE_FILES))
        self._events = XidEvents(self._take_line) if has_gpus and not self._log.is_readable else None
        self._verdicts: list[Verdict] = []
        self._told: set[str] = set()
        self._unanswered = 0
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow_log, name="kernel-log", daemon=True),
            threading.Thread(target=self._ask_devices, name="health-watch", daemon=True),
        ]

    def __enter__(self) -> Self:
        """Begin."""
        for thread in self._threads:
            thread.start()
        if self._events is not None:
            self._events.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; what came to the log last is still told."""
        self._stop.set()
        if self._events is not None:
            self._events.stop()
        self._threads[0].join(timeout=5)

    def _follow_log(self) -> None:
        while True:
            is_last = self._stop.wait(_LOOK_S)
            for line in self._log.lines():
                self._take_line(line.text)
            if is_last:
                self._log.close()
                return

    def _take_line(self, text: str) -> None:
        if xid := parse_xid(text):
            verdict = judge_xid(xid, self._policy)
            self._verdicts.append(verdict)
            self._tell("xid", verdict.text, is_fatal=verdict.is_fatal)
            for again in repeated(self._verdicts, self._policy.thresholds.xid_repeats):
                self._tell("health", again)
        elif killed := _OOM_KILL.search(text):
            self._tell("health", f"out of memory: the kernel killed the process {killed['process']}")

    def _ask_devices(self) -> None:
        while self._look_at_devices() and not self._stop.wait(self._policy.thresholds.watch_every_s):
            pass

    def _look_at_devices(self) -> bool:
        """One look; whether there is anything to look at again."""
        limits = self._policy.thresholds.model_copy(update={"leftover_wait_s": 0.0})
        results = [
            result
            for result in [*check_gpus(limits, self._num_gpus, devices=self._devices), check_fabric(self._sys)]
            if result.name not in _LEFT_ASIDE
        ]
        self._unanswered = self._unanswered + 1 if _is_silent(results) else 0
        for result in results:
            # A driver under load may be late once.
            if result.status == "failed" and not (result.name == "gpus" and self._unanswered == 1):
                self._tell("health", f"{result.name}: {result.text}", is_fatal=result.name in _FATAL_CHECKS)
        return any(result.status != "not_present" for result in results)

    def _tell(self, what: str, text: str, *, is_fatal: bool = False) -> None:
        if text in self._told:
            return
        self._told.add(text)
        self._on_alert(
            Alert(
                time=time.time(),
                what="xid" if what == "xid" else "health",
                host=host_name(),
                node=self._node,
                is_fatal=is_fatal,
                text=text,
            )
        )


def _is_silent(results: list[CheckResult]) -> bool:
    return any(result.name == "gpus" and result.status == "failed" and not result.measured for result in results)
