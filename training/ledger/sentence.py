"""A run's goodput in one line."""

from training.ledger.buckets import Bucket, Totals

_WORST = 3
"""Buckets that are named."""

_UNDER_WAY: tuple[Bucket, ...] = ("step",)


def goodput_line(totals: Totals) -> str:
    """What a run's time went into, as `goodput 87 % over 2 attempts (redone 12 s, recovery 6 s)`."""
    attempts = f"{totals.num_attempts} attempt{'' if totals.num_attempts == 1 else 's'}"
    others = [(seconds, bucket) for bucket, seconds in totals.seconds.items() if bucket not in _UNDER_WAY]
    worst = [f"{bucket.replace('_', ' ')} {show_seconds(seconds)}" for seconds, bucket in sorted(others)[::-1]]
    named = f" ({', '.join(worst[:_WORST])})" if worst else ""
    return f"goodput {100 * totals.goodput:.0f} % over {attempts}{named}"


def show_seconds(seconds: float) -> str:
    """A duration: `0.4 s`, `12 s`, `3 min 12 s`, `2 h 05 min`, `3 d 4 h`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, part, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {smaller}"
    return f"{whole} s"
