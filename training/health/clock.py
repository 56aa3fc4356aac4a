"""Compares the clocks of a job's nodes, and that of the store, through files in the store."""

import time
from pathlib import Path

from training.guard.place import host_name
from training.health.policy import Thresholds
from training.health.result import CheckResult
from training.store import write_atomically


def check_clock(limits: Thresholds, folder: Path | None, node: str = "", now: float | None = None) -> CheckResult:
    """Write down this node's time, and look at those of the others.

    A time that lies in the future proves that clocks differ, at least by so much, however old its file is and
    however late a network disk shows it. Every node writes and reads, so of two that differ one always sees it.
    Nothing in a run depends on clocks of machines being equal but how its events are sorted and its seconds are
    booked, so it only warns.

    Args:
        limits: Thresholds.
        folder: Shared by the job's nodes; None: there are no others.
        node: This node's name; by default the machine's.
        now: Seconds since the epoch; by default this machine's time.
    """
    if folder is None:
        return CheckResult("clock", "not_present", "no other clock to compare with")
    now = time.time() if now is None else now
    own = folder / (node or host_name())
    try:
        write_atomically(own, f"{now:.3f} {host_name()}\n")
        ahead = {"the store": own.stat().st_mtime - now}
    except OSError as error:
        return CheckResult("clock", "not_present", f"the clocks cannot be compared: {error.strerror}")
    for path in folder.iterdir():
        if path != own and (stamp := _stamp(path)) is not None:
            ahead[f"{stamp[1]} ({path.name})"] = stamp[0] - now
    # The store's clock is read at once, so it may also be late.
    worst = max(ahead, key=lambda name: abs(ahead[name]) if name == "the store" else ahead[name])
    skew = abs(ahead[worst]) if worst == "the store" else max(0.0, ahead[worst])
    measured = {"skew_s": round(skew, 3), "num_clocks": len(ahead)}
    if skew > limits.clock_skew_s:
        text = f"the clock of {worst} and this one differ by {skew:,.1f} s or more"
        return CheckResult("clock", "warning", text, measured, "let chrony or ntpd set the clocks")
    return CheckResult("clock", "ok", f"no clock is more than {skew:.1f} s ahead, of {len(ahead)}", measured)


def _stamp(path: Path) -> tuple[float, str] | None:
    """Time and machine that a node wrote; None where it is half-written or no stamp."""
    try:
        seconds, host = path.read_text(encoding="utf-8").split()
        return float(seconds), host
    except (OSError, ValueError):
        return None
