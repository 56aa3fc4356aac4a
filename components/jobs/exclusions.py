"""Machines that a run does not use for a while: `<run>/exclusions.json`, for all of its jobs."""

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from training.patience import patiently
from training.run_folder import RunFolder
from training.store import write_atomically

_NAME = "exclusions.json"

_SKEW_S = 300.0
"""By which the clocks of machines may differ."""


@dataclass(frozen=True)
class Exclusion:
    """A machine that is not used.

    Attributes:
        host: The machine.
        since: Seconds since the epoch.
        until: Likewise.
        reason: In one line.
        may_be_lifted: Whether it is used again where no replacement comes: it is only in doubt.
    """

    host: str
    since: float
    until: float
    reason: str
    may_be_lifted: bool = False


def exclude(
    folder: RunFolder,
    hosts: Mapping[str, str],
    seconds: float,
    now: float | None = None,
    *,
    may_be_lifted: bool = False,
) -> None:
    """Do not use machines for a while.

    Args:
        folder: The run's.
        hosts: Machine → reason.
        seconds: For how long; 0: nothing is excluded.
        now: Seconds since the epoch; None: the present.
        may_be_lifted: See `Exclusion`.
    """
    if not hosts or seconds <= 0:
        return
    now = time.time() if now is None else now
    kept = {entry.host: entry for entry in exclusions(folder, now)}
    kept |= {host: Exclusion(host, now, now + seconds, reason, may_be_lifted) for host, reason in hosts.items()}
    _write(folder, kept.values())


def lift(folder: RunFolder, hosts: Iterable[str]) -> None:
    """Use machines again."""
    lifted = set(hosts)
    _write(folder, [entry for entry in exclusions(folder) if entry.host not in lifted])


def excluded(folder: RunFolder, now: float | None = None) -> tuple[str, ...]:
    """The machines that must not be used now, sorted."""
    return tuple(sorted(entry.host for entry in exclusions(folder, now)))


def exclusions(folder: RunFolder, now: float | None = None) -> list[Exclusion]:
    """The exclusions that hold now.

    One that begins in the future was written by a clock that was wrong. It would hold for longer than it was
    meant to, and is dropped.

    Args:
        folder: The run's.
        now: Seconds since the epoch; None: the present.
    """
    now = time.time() if now is None else now
    try:
        content = json.loads((folder.path / _NAME).read_text())
        entries = [Exclusion(**entry) for entry in content]
    except (OSError, ValueError, TypeError):
        return []
    return [entry for entry in entries if _is_sound(entry) and entry.since - _SKEW_S <= now < entry.until]


def _is_sound(entry: Exclusion) -> bool:
    texts = isinstance(entry.host, str) and isinstance(entry.reason, str)
    return texts and all(
        isinstance(each, int | float) and math.isfinite(each) for each in (entry.since, entry.until)
    )


def _write(folder: RunFolder, entries: Iterable[Exclusion]) -> None:
    content = json.dumps([asdict(entry) for entry in entries], indent=1)
    patiently(lambda: write_atomically(folder.path / _NAME, content))
