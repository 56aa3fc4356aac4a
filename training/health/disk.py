"""Checks of the disk that checkpoints go to."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from training.health.bounded import ask
from training.health.disk_probe import FULL
from training.health.policy import Thresholds
from training.health.result import CheckResult

_GIB = 2**30

_PROBE = (sys.executable, "-I", "-S", str(Path(__file__).with_name("disk_probe.py")))
"""As a bare file without site packages, which starts in a tenth of the time."""


def check_disk(
    limits: Thresholds, folder: Path, checkpoint_bytes: int | None = None, *, probe: Sequence[str] = ()
) -> list[CheckResult]:
    """Write, flush and read a file in a process of its own, and look at the free space.

    Nothing here touches the disk itself: of one that hangs, not even a question whether a folder is there returns.

    Args:
        limits: Thresholds.
        folder: On the disk; it has to be there.
        checkpoint_bytes: Size of a checkpoint, where it is known.
        probe: Command; by default `disk_probe.py` beside this.
    """
    answer = ask([*(probe or _PROBE), str(folder)], limits.disk_timeout_s)
    if answer.code is None:
        text = f"{folder} hangs: nothing was written within {limits.disk_timeout_s:g} s"
        advice = "look at the mount and its server; a network disk may have to be mounted again"
        return [CheckResult("disk", "failed", text, advice=advice), _unknown_space()]
    if answer.code == FULL:
        # The store is the same from any machine, so another one would do no better.
        return [CheckResult("disk", "warning", f"{folder} is full", advice="free some space"), _unknown_space()]
    if answer.code != 0:
        text = f"{folder} cannot be written: {answer.errors.strip().rpartition(chr(10))[2]}"
        return [CheckResult("disk", "failed", text, advice="mount it, or make it writable"), _unknown_space()]
    told = json.loads(answer.output)
    took_s = round(told["seconds"], 4)
    if not told["is_same"]:
        text = f"{folder} gives back something else than was written"
        disk = CheckResult("disk", "failed", text, {"seconds": took_s}, "have the disk replaced")
    elif took_s > limits.disk_slow_s:
        text = f"writing and reading 1 MiB took {took_s:.1f} s, more than {limits.disk_slow_s:g} s"
        disk = CheckResult("disk", "warning", text, {"seconds": took_s}, "look at the load of the disk's server")
    else:
        disk = CheckResult("disk", "ok", f"1 MiB written and read in {took_s:.3f} s", {"seconds": took_s})
    return [disk, judge_space(limits, told["free_bytes"], checkpoint_bytes)]


def judge_space(limits: Thresholds, free_bytes: int, checkpoint_bytes: int | None) -> CheckResult:
    """Compare free space with what the next checkpoints need; the disk is shared, so no machine fails for it."""
    measured = {"free_bytes": free_bytes, "checkpoint_bytes": checkpoint_bytes}
    text = f"{free_bytes / _GIB:,.1f} GiB free"
    needed = limits.free_checkpoints * (checkpoint_bytes or 0)
    if free_bytes < needed:
        text += f", {limits.free_checkpoints:g} checkpoints take {needed / _GIB:,.1f} GiB"
        return CheckResult("disk_space", "warning", text, measured, "free some space, or keep fewer checkpoints")
    return CheckResult("disk_space", "ok", text, measured)


def _unknown_space() -> CheckResult:
    return CheckResult("disk_space", "not_present", "the disk does not answer")
