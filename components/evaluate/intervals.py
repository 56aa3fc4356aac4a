"""95 % confidence intervals by the bootstrap: documents, or answers, are drawn anew with replacement.

Two models are compared on the same draws, so that what is hard for both cancels out.
"""

from dataclasses import dataclass

import numpy as np

NUM_RESAMPLES = 2000

_SEED = 20250519

_LEVEL = (2.5, 97.5)
"""Percentiles of a 95 % interval."""

_MAX_UNITS = 10_000
"""Documents that are drawn one by one; more are put together at random into so many groups, which are drawn."""

_DRAWS_AT_ONCE = 2**22


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % confidence interval.

    Attributes:
        value: The figure.
        low: Lower end; None where there is no interval, as of a single document. Likewise `high`.
        high: Upper end.
        count: Documents, answers or examples that it is taken over.
    """

    value: float
    low: float | None
    high: float | None
    count: int


def loss_estimate(nats: np.ndarray, counts: np.ndarray) -> Estimate:
    """Mean loss in nats per token, over documents.

    Args:
        nats: float64 [documents]; summed over a document's tokens.
        counts: int64 [documents]; those tokens.
    """
    return _ratio_estimate(nats, counts)


def loss_change(nats: np.ndarray, other_nats: np.ndarray, counts: np.ndarray) -> Estimate:
    """By how much the loss is higher than another model's on the same documents; see `loss_estimate`."""
    return _ratio_estimate(nats - other_nats, counts)


def mean_estimate(values: np.ndarray) -> Estimate:
    """Mean over answers, float64 [answers]; the paired difference of two models where it is given that."""
    return _ratio_estimate(values, np.ones(len(values), dtype=np.int64))


def _ratio_estimate(numerators: np.ndarray, denominators: np.ndarray) -> Estimate:
    count = len(numerators)
    value = float(numerators.sum() / denominators.sum())
    if count < 2:
        return Estimate(value, None, None, count)
    random = np.random.default_rng(_SEED)
    units = np.stack([numerators.astype(np.float64), denominators.astype(np.float64)])
    if count > _MAX_UNITS:
        group = random.permutation(count) % _MAX_UNITS
        units = np.stack([np.bincount(group, weights=row, minlength=_MAX_UNITS) for row in units])
    num_units = units.shape[1]
    rows_at_once = max(1, _DRAWS_AT_ONCE // num_units)
    ratios = []
    for first in range(0, NUM_RESAMPLES, rows_at_once):
        rows = min(rows_at_once, NUM_RESAMPLES - first)
        times = random.multinomial(num_units, np.full(num_units, 1 / num_units), size=rows)
        tops, bottoms = times @ units[0], times @ units[1]
        ratios.append(tops / bottoms)
    low, high = np.percentile(np.concatenate(ratios), _LEVEL)
    return Estimate(value, float(low), float(high), count)
