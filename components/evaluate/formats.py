"""Figures as people read them."""

import math
from collections.abc import Callable

from components.evaluate.intervals import Estimate


def as_loss(loss: float) -> str:
    """A loss in nats, as `2.214`."""
    return f"{loss:.3f}"


def as_perplexity(value: float) -> str:
    """A perplexity to about three digits: `9.12`, `24.8`, `1,240`, `3.2e+08`."""
    if value >= 1e7:
        return f"{value:.1e}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def as_change(value: float, digits: int = 3) -> str:
    """A signed difference with a real minus, as `−1.003`; no sign when it rounds to zero."""
    text = f"{abs(value):,.{digits}f}"
    if float(text.replace(",", "")) == 0:
        return text
    return f"{'−' if value < 0 else '+'}{text}"


def as_interval(estimate: Estimate, as_text: Callable[[float], str]) -> str:
    """A 95 % confidence interval, as `[2.198, 2.231]`; empty where there is none.

    Args:
        estimate: With the interval.
        as_text: Of its ends.
    """
    if estimate.low is None or estimate.high is None:
        return ""
    return f"[{as_text(estimate.low)}, {as_text(estimate.high)}]"


def as_score(value: float) -> str:
    """A score from 0 to 1, as `0.412`; of another size, to four digits."""
    text = f"{value:.3f}" if abs(value) <= 1 else f"{value:.4g}"
    return text.replace("-", "−")


def as_rate(rate: float) -> str:
    """A learning rate, as `2e-5` or `1.9e-4`."""
    digits, _, exponent = f"{rate:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}" if rate else "0"


def as_count(value: float) -> str:
    """A whole number, as `3,456`."""
    return f"{value:,.0f}"


def as_tick(value: float) -> str:
    """A mark of an axis: `0.5`, `200`, `20k`, `3M`."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def as_percent(share: float) -> str:
    """A share, as `4.0 %`, `31 %` or `0.02 %`."""
    percent = 100 * share
    # Enough digits to tell a small share from none.
    digits = (
        0 if percent >= 10 or percent == 0 else 1 if percent >= 1 else min(6, 1 - math.floor(math.log10(percent)))
    )
    return f"{percent:,.{digits}f}\N{NO-BREAK SPACE}%"


def as_tflops(value: float) -> str:
    """A rate in TFLOP/s to three digits: `412`, `41.2`, `0.0312`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def as_duration(seconds: float) -> str:
    """A duration: `8 s`, `3 min 12 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
