"""Seconds as whole microseconds, whatever a clock said."""

_CENTURIES_S = 1e11
"""No clock of a run is that far ahead, and no step takes that long."""


def microseconds(seconds: float | None) -> int | None:
    """A time or a duration; None where it is none, or nonsense."""
    if not isinstance(seconds, int | float) or not 0 <= seconds < _CENTURIES_S:
        return None  # not a number is neither
    return round(seconds * 1e6)


def duration(seconds: float | None) -> int:
    """A duration in microseconds; 0 where it is nonsense."""
    return microseconds(seconds) or 0
