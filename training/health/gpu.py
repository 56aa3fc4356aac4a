"""Checks of NVIDIA's GPUs, judged from what `training.health.nvml` reads."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.config import ClusterConfig
from training.health.bounded import ask
from training.health.nvml import NOT_HERE
from training.health.policy import Thresholds
from training.health.result import CheckResult, Status

_MIB = 2**20

_PARTS = ("gpu_recovery", "gpu_ecc", "gpu_rows", "gpu_memory", "gpu_throttle", "nvlink")

_WHOLE_GPUS = "nvidia.com/gpu"
"""Resource of the device plugin; others are parts of GPUs, or of other makers."""

DEVICE_FILES = "nvidia[0-9]*"

_RECOVERY = {1: "a reset of the GPU", 2: "a reboot", 3: "draining of its links", 4: "draining and a reset"}
"""NVML_GPU_RECOVERY_ACTION_*; greater numbers came later."""

_THROTTLE = {0x8: "hardware slowdown", 0x40: "too hot", 0x80: "power brake"}
"""nvmlClocksEventReason*."""


def check_gpus(
    limits: Thresholds, num_gpus: int | None = None, *, devices: Path = Path("/dev"), probe: Sequence[str] = ()
) -> list[CheckResult]:
    """Ask the driver, in a process of its own, and judge what it tells.

    Memory that is in use is looked at again for a while: that of a process which was just killed is freed late.

    Args:
        limits: Thresholds.
        num_gpus: How many there have to be; None: as many as there are.
        devices: Where the driver's device files are.
        probe: Command that reads the GPUs; by default `python -m training.health.nvml`.
    """
    has_driver = any(devices.glob(DEVICE_FILES))
    if not has_driver and not num_gpus:
        what = f"no NVIDIA GPU: there is no {devices / DEVICE_FILES}"
        return [CheckResult("gpus", "not_present", what), *_untold("no NVIDIA GPU")]
    command = list(probe) or [sys.executable, "-m", "training.health.nvml"]
    deadline = None
    while True:
        started = time.monotonic()
        answer = ask(command, limits.driver_timeout_s)
        took_s = time.monotonic() - started
        if answer.code is None:
            what = f"NVML did not answer within {limits.driver_timeout_s:g} s"
            return [
                CheckResult("gpus", "failed", what, advice="reboot the machine: its driver hangs"),
                *_untold(what),
            ]
        try:
            reading = json.loads(answer.output)
        except ValueError:
            last = answer.errors.strip().rpartition("\n")[2]
            reading = {"error": f"reading failed with exit code {answer.code}: {last}", "driver": None, "gpus": []}
        results = judge_gpus(reading, limits, num_gpus, has_driver=has_driver, took_s=took_s)
        left = any(result.name == "gpu_memory" and result.status == "failed" for result in results)
        deadline = deadline or time.monotonic() + limits.leftover_wait_s
        if not left or time.monotonic() >= deadline:
            return results
        time.sleep(min(2.0, limits.leftover_wait_s))


def expected_gpus(cluster: ClusterConfig, limits: Mapping[str, str] | None = None) -> int | None:
    """How many GPUs each node has to have; None where that is not said, or they are not whole ones of NVIDIA.

    A run on this machine takes the devices that there are, whatever its pods would ask for.

    Args:
        cluster: The run's.
        limits: Of the node's pod, where they are known.
    """
    if cluster.gpu_resource != _WHOLE_GPUS or cluster.launcher == "local":
        return None
    return int((limits or {}).get(_WHOLE_GPUS, cluster.gpus_per_node or 0)) or None


def judge_gpus(
    reading: dict[str, Any],
    limits: Thresholds,
    num_gpus: int | None = None,
    *,
    has_driver: bool = False,
    took_s: float = 0.0,
) -> list[CheckResult]:
    """Judge a reading.

    Args:
        reading: As `training.health.nvml.read_gpus` gives it.
        limits: Thresholds.
        num_gpus: How many there have to be; None: as many as there are.
        has_driver: There are device files, so there are GPUs, whatever NVML says.
        took_s: Seconds that the answer took.
    """
    error, gpus = reading["error"], reading["gpus"]
    if error in NOT_HERE and not has_driver and not num_gpus:
        what = f"no NVIDIA GPU: {_why(error)}"
        return [CheckResult("gpus", "not_present", what), *_untold("no NVIDIA GPU")]
    if error == "no pynvml" and has_driver:
        what = "there are GPUs, but the Python package nvidia-ml-py, which reads them, is not installed"
        return [CheckResult("gpus", "warning", what, advice="install nvidia-ml-py"), *_untold(what)]
    if error:
        advice = "look at the driver's state with nvidia-smi; reset the GPUs or reboot the machine"
        return [CheckResult("gpus", "failed", f"NVML: {_why(error)}", advice=advice), *_untold(_why(error))]
    if not gpus and has_driver:
        what, advice = "there are device files, but the driver has no GPU", "reboot the machine, or replace it"
        return [CheckResult("gpus", "failed", what, advice=advice), *_untold(what)]
    if not gpus and not num_gpus:
        return [CheckResult("gpus", "not_present", "the driver has no GPU"), *_untold("the driver has no GPU")]
    alive = [gpu for gpu in gpus if not gpu["error"]]
    judged = [judge(alive, limits) for judge in _JUDGES] if alive else _untold("no GPU answers")
    return [_count(reading, num_gpus, took_s), *judged]


def _count(reading: dict[str, Any], num_gpus: int | None, took_s: float) -> CheckResult:
    gpus = reading["gpus"]
    dead = [f"GPU {gpu['index']} does not answer ({gpu['error']})" for gpu in gpus if gpu["error"]]
    missing = num_gpus is not None and len(gpus) < num_gpus
    measured = {"num_gpus": len(gpus), "driver": reading["driver"], "seconds": round(took_s, 2)}
    if dead or missing:
        short = [f"{len(gpus)} of {num_gpus} GPUs are there"] if missing else []
        advice = "reboot the machine; if that does not bring them back, have it repaired"
        return CheckResult("gpus", "failed", "; ".join([*short, *dead]), measured, advice)
    names = " and ".join(sorted({gpu["name"] for gpu in gpus}))
    text = f"{len(gpus)} × {names}, driver {reading['driver']}, answered in {took_s:.1f} s"
    return CheckResult("gpus", "ok", text, measured)


def _judge(
    name: str, gpus: list[dict[str, Any]], key: str, wrong: Callable[[Any], str], fine: str, advice: str
) -> CheckResult:
    """A check of one reading over all GPUs that tell it; `wrong` says what is wrong with a value, if anything."""
    told = {gpu["index"]: gpu[key] for gpu in gpus if gpu[key] is not None}
    if not told:
        return CheckResult(name, "not_present", "these GPUs do not tell it")
    bad = [f"GPU {index}: {text}" for index, value in told.items() if (text := wrong(value))]
    status: Status = "failed" if bad else "ok"
    return CheckResult(name, status, "; ".join(bad) or fine, {key: told}, advice if bad else "")


def _recovery(gpus: list[dict[str, Any]], limits: Thresholds) -> CheckResult:
    def wrong(action: int) -> str:
        return f"the driver asks for {_RECOVERY.get(action, f'recovery action {action}')}" if action else ""

    return _judge(
        "gpu_recovery", gpus, "recovery_action", wrong, "none is asked for", "do what the driver asks for"
    )


def _ecc(gpus: list[dict[str, Any]], limits: Thresholds) -> CheckResult:
    def wrong(count: int) -> str:
        return f"{count} uncorrected ECC errors" if count > limits.ecc_uncorrected else ""

    return _judge(
        "gpu_ecc",
        gpus,
        "ecc_uncorrected",
        wrong,
        "no uncorrected error",
        "reset the GPU; if they return, replace it",
    )


def _rows(gpus: list[dict[str, Any]], limits: Thresholds) -> CheckResult:
    def wrong(rows: dict[str, int]) -> str:
        if rows["failure"]:
            return "a row could not be remapped"
        return "a remapping waits for a reset" if rows["pending"] else ""

    return _judge("gpu_rows", gpus, "remapped_rows", wrong, "no remapping waits or failed", "reset the GPU")


def _memory(gpus: list[dict[str, Any]], limits: Thresholds) -> CheckResult:
    def wrong(used: int) -> str:
        mib = used / _MIB
        limit = limits.leftover_gpu_memory_mib
        return f"{mib:,.0f} MiB in use, at most {limit:g} expected" if mib > limit else ""

    advice = "end the process that holds it (nvidia-smi shows it), or reset the GPU"
    return _judge("gpu_memory", gpus, "memory_used_bytes", wrong, "no memory left in use", advice)


def _throttle(gpus: list[dict[str, Any]], limits: Thresholds) -> CheckResult:
    def wrong(reasons: int) -> str:
        bad = reasons & limits.throttle_mask
        return ", ".join(_THROTTLE.get(bit, hex(bit)) for bit in _bits(bad))

    advice = "check cooling and power of the machine"
    return _judge("gpu_throttle", gpus, "throttle", wrong, "clocks are not held down", advice)


def _nvlink(gpus: list[dict[str, Any]], limits: Thresholds) -> CheckResult:
    if not any(gpu["links"] and gpu["links"]["num"] > len(gpu["links"]["inactive"]) for gpu in gpus):
        # A card that could have them and has no bridge tells that all are inactive.
        return CheckResult("nvlink", "not_present", "no NVLink is connected")

    def wrong(links: dict[str, Any]) -> str:
        return f"links {', '.join(map(str, links['inactive']))} are inactive" if links["inactive"] else ""

    return _judge(
        "nvlink", gpus, "links", wrong, "all links are active", "reset the GPUs; if it stays, replace them"
    )


_JUDGES = (_recovery, _ecc, _rows, _memory, _throttle, _nvlink)


def _untold(why: str) -> list[CheckResult]:
    """Of every other check: nothing is known, which is not the same as healthy."""
    return [CheckResult(name, "not_present", why) for name in _PARTS]


def _why(error: str) -> str:
    known = {
        "LibraryNotFound": "NVML is not installed",
        "DriverNotLoaded": "the driver is not loaded",
        "no pynvml": "nvidia-ml-py is not installed",
    }
    return known.get(error, error)


def _bits(mask: int) -> list[int]:
    return [1 << place for place in range(mask.bit_length()) if mask >> place & 1]
