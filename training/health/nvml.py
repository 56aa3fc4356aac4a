"""Reads NVIDIA's GPUs through NVML: `python -m training.health.nvml` prints them as JSON.

A process of its own, because a driver that is stuck does not come back.
"""

import contextlib
import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

_UNCORRECTED = 1
"""NVML_MEMORY_ERROR_TYPE_UNCORRECTED, since the driver was loaded (NVML_VOLATILE_ECC, 0)."""

_RECOVERY_FIELD = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, from driver 570 on."""

NOT_HERE = ("LibraryNotFound", "DriverNotLoaded", "no pynvml")
"""What is told instead of GPUs on a machine without the driver, or without the Python package."""


def read_gpus(nvml: Any) -> dict[str, Any]:
    """What NVML tells of this machine.

    Args:
        nvml: The module `pynvml`.

    Returns:
        `error`: why nothing is told, else None; `driver`: its version; `gpus`: for each its `index`, `uuid`,
        `name`, and what it tells: a value that this GPU or driver does not know is None, and `error` is set
        where the GPU itself does not answer.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return {"error": _name(error), "driver": None, "gpus": []}
    try:
        count = nvml.nvmlDeviceGetCount()
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        return {"error": None, "driver": driver, "gpus": [_read(nvml, index) for index in range(count)]}
    except nvml.NVMLError as error:
        return {"error": _name(error), "driver": None, "gpus": []}
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _read(nvml: Any, index: int) -> dict[str, Any]:
    gpu: dict[str, Any] = {"index": index, "uuid": None, "name": None, "error": None}
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        gpu["uuid"], gpu["name"] = _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))
        gpu |= {name: _told(nvml, read, handle) for name, read in _READINGS.items()}
    except nvml.NVMLError as error:
        gpu["error"] = _name(error)
    return gpu


def _told(nvml: Any, read: Callable[[Any, Any], Any], handle: Any) -> Any:
    """A reading; None where this GPU or this driver does not know it."""
    try:
        return read(nvml, handle)
    except nvml.NVMLError as error:
        if _name(error) in ("NotSupported", "FunctionNotFound", "NoPermission", "InvalidArgument", "NotFound"):
            return None
        raise  # the GPU is lost, or needs a reset


def _recovery(nvml: Any, handle: Any) -> int | None:
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_FIELD])
    return int(value.value.uiVal) if value.nvmlReturn == 0 else None


def _remapped(nvml: Any, handle: Any) -> dict[str, int]:
    _, uncorrectable, pending, failure = nvml.nvmlDeviceGetRemappedRows(handle)
    return {"uncorrectable": int(uncorrectable), "pending": int(pending), "failure": int(failure)}


def _memory_used(nvml: Any, handle: Any) -> int:
    try:
        # The first version counts what the driver keeps for itself as used: 600 MiB on some GPUs.
        return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)
    except nvml.NVMLError:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def _links(nvml: Any, handle: Any) -> dict[str, Any] | None:
    """The NVLinks that are up and those that are not; None where there is none."""

    def state(link: int) -> Any:
        return _told(nvml, lambda nvml, handle: nvml.nvmlDeviceGetNvLinkState(handle, link), handle)

    states = {link: state(link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)}
    known = {link: state for link, state in states.items() if state is not None}
    return {"num": len(known), "inactive": [link for link, state in known.items() if not state]} if known else None


_READINGS: dict[str, Callable[[Any, Any], Any]] = {
    "recovery_action": _recovery,
    "ecc_uncorrected": lambda nvml, handle: int(nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, 0)),
    "remapped_rows": _remapped,
    "memory_used_bytes": _memory_used,
    "links": _links,
    "throttle": lambda nvml, handle: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
    "temperature_c": lambda nvml, handle: int(nvml.nvmlDeviceGetTemperature(handle, 0)),
}


def _name(error: Exception) -> str:
    """The kind of an NVML error, such as `GpuIsLost`: pynvml makes a class for each."""
    return type(error).__name__.removeprefix("NVMLError_")


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def main() -> int:
    """Print what NVML tells; returns the exit code."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        print(json.dumps({"error": "no pynvml", "driver": None, "gpus": []}))
        return 0
    print(json.dumps(read_gpus(nvml)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
