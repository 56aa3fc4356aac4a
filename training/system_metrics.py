"""What a node's machine does while it computes: CPU, memory, disk, network and GPUs, sampled in the background."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from training.events import EventWriter, System

_EVERY_S = 10.0

_SAMPLES_AT_FULL_PACE = 720

_MEGABYTE = 1e6


class SystemMetrics:
    """Writes samples to the node's own file of the event stream.

    One every ten seconds; after two hours ever more rarely, so that the file of a run that takes a month has some
    thousand lines.

    Args:
        events: `<run>/events`.
        source: The node's name.
        attempt: The attempt that it works for.
        disk: A folder on the disk to watch.
        every_s: Seconds between two samples in the beginning.
    """

    def __init__(self, events: Path, source: str, attempt: int, disk: Path, every_s: float = _EVERY_S) -> None:
        self._events = events
        self._source = source
        self._attempt = attempt
        self._disk = disk
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-metrics", daemon=True)

    def __enter__(self) -> "SystemMetrics":
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """End."""
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        # Of no use to the training, so nothing that goes wrong here may reach it: the disk may be full.
        with contextlib.suppress(OSError, psutil.Error), _gpus() as gpus:
            writer = EventWriter(self._events, self._source, self._attempt)
            sample = _Sampler(self._disk, gpus)
            started = time.monotonic()
            while not self._stop.wait(pause_s(time.monotonic() - started, self._every_s)):
                writer.write(System(values=sample()))
            writer.close()


def pause_s(elapsed_s: float, every_s: float) -> float:
    """Seconds until the next sample: a share of the time that has passed, and never less than `every_s`."""
    return max(every_s, elapsed_s / _SAMPLES_AT_FULL_PACE)


class _Sampler:
    def __init__(self, disk: Path, gpus: Callable[[], dict[str, float]]) -> None:
        self._disk = str(disk)
        self._gpus = gpus
        self._network = psutil.net_io_counters()
        psutil.cpu_percent()  # what it gives is since the call before

    def __call__(self) -> dict[str, float]:
        memory, disk = psutil.virtual_memory(), psutil.disk_usage(self._disk)
        values = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": (memory.total - memory.available) / _MEGABYTE,
            "system_memory_usage_percentage": memory.percent,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / _MEGABYTE,
            "disk_available_megabytes": disk.free / _MEGABYTE,
        }
        before, now = self._network, psutil.net_io_counters()
        if before is not None and now is not None:
            values["network_receive_megabytes"] = (now.bytes_recv - before.bytes_recv) / _MEGABYTE
            values["network_transmit_megabytes"] = (now.bytes_sent - before.bytes_sent) / _MEGABYTE
        self._network = now
        return {name: round(value, 3) for name, value in {**values, **self._gpus()}.items()}


@contextlib.contextmanager
def _gpus() -> Iterator[Callable[[], dict[str, float]]]:
    """What NVIDIA's driver tells of the node's GPUs; nothing where there are none."""
    try:
        import pynvml
    except ImportError:
        yield dict
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield dict
        return
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        yield lambda: _read_gpus(pynvml, handles)
    finally:
        pynvml.nvmlShutdown()


def _read_gpus(nvml: Any, handles: list[Any]) -> dict[str, float]:
    values: dict[str, float] = {}
    for i, handle in enumerate(handles):
        # Not every GPU, and not every part of one, tells everything.
        with contextlib.suppress(nvml.NVMLError):
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            values[f"gpu_{i}_memory_usage_megabytes"] = memory.used / _MEGABYTE
            values[f"gpu_{i}_memory_usage_percentage"] = 100 * memory.used / memory.total
        with contextlib.suppress(nvml.NVMLError):
            values[f"gpu_{i}_utilization_percentage"] = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
        with contextlib.suppress(nvml.NVMLError):
            watts = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
            values[f"gpu_{i}_power_usage_watts"] = watts
            limit = nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
            values[f"gpu_{i}_power_usage_percentage"] = 100 * watts / limit
    return values
