"""Seconds as whole microseconds, whatever a clock said."""

import math

_CENTURIES = 10**17
"""Microseconds: no clock of a run is that far ahead, and no step takes that long."""


def microseconds(seconds: float | None) -> int | None:
    """A time or a duration; None where it is none, or nonsense."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return None
    found = round(seconds * 1e6)
    return found if 0 <= found < _CENTURIES else None


def duration(seconds: float | None) -> int:
    """A duration in microseconds; 0 where it is nonsense."""
    return microseconds(seconds) or 0
