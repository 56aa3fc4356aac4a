"""Checks of AWS Trainium and Inferentia devices, by their tool and by sysfs."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from training.health.bounded import ask
from training.health.policy import Thresholds
from training.health.result import CheckResult

_FOLDER = Path("devices/virtual/neuron_device")

_DEVICE_COUNTERS = ("stats/hardware/mem_ecc_uncorrected", "stats/hardware/sram_ecc_uncorrected")
_CORE_COUNTER = "neuron_core*/stats/status/hw_error/total"
"""As the Neuron driver lays them out (AWS Neuron documentation, "Neuron Sysfs")."""


def check_neuron(
    limits: Thresholds,
    *,
    sys: Path = Path("/sys"),
    devices: Path = Path("/dev"),
    tool: Sequence[str] = ("neuron-ls", "--json-output"),
) -> CheckResult:
    """Compare the devices that `neuron-ls` lists with those of the system, and look at their error counters.

    Args:
        limits: Thresholds.
        sys: Where sysfs is mounted.
        devices: Where device files are.
        tool: Command that lists the devices as JSON.
    """
    here = [path for path in devices.glob("neuron*") if path.name.removeprefix("neuron").isdigit()]
    folders = sorted((sys / _FOLDER).glob("neuron[0-9]*"))
    if not here and not folders:
        return CheckResult("neuron", "not_present", "no Neuron device")
    advice = "stop and start the instance; if it stays, replace it"
    errors = {folder.name: count for folder in folders if (count := _errors(folder))}
    listed = _listed(limits, tool)
    num_devices = max(len(here), len(folders))
    measured = {"num_devices": num_devices, "num_listed": listed, "errors": errors}
    problems = [f"{name}: {count} hardware errors" for name, count in errors.items()]
    if isinstance(listed, str):
        problems.append(listed)
    elif listed is not None and listed < num_devices:
        problems.append(f"neuron-ls lists {listed} of {num_devices} devices")
    if problems:
        return CheckResult("neuron", "failed", "; ".join(problems), measured, advice)
    if not folders:
        text = f"{num_devices} devices, whose hardware errors nothing tells"
        return CheckResult("neuron", "warning", text, measured, "install the driver's sysfs (aws-neuronx-dkms)")
    text = f"{num_devices} devices without hardware errors"
    if listed is None:
        return CheckResult("neuron", "warning", f"{text}, by sysfs alone", measured, "install aws-neuronx-tools")
    return CheckResult("neuron", "ok", text, measured)


def _listed(limits: Thresholds, tool: Sequence[str]) -> int | str | None:
    """Number of devices that the tool lists, or what is wrong with it; None where there is no tool."""
    if shutil.which(tool[0]) is None:
        return None
    answer = ask(tool, limits.driver_timeout_s)
    if answer.code is None:
        return f"neuron-ls did not answer within {limits.driver_timeout_s:g} s"
    try:
        return len(json.loads(answer.output))
    except (ValueError, TypeError):
        return f"neuron-ls failed with exit code {answer.code}: {answer.errors.strip().rpartition(chr(10))[2]}"


def _errors(folder: Path) -> int:
    counters = [*(folder / name for name in _DEVICE_COUNTERS), *folder.glob(_CORE_COUNTER)]
    return sum(_count(path) for path in counters)


def _count(path: Path) -> int:
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):
        return 0
