"""Confidence intervals against what statistics says of them."""

import numpy as np
import pytest

from components.evaluate import intervals
from components.evaluate.intervals import loss_change, loss_estimate, mean_estimate


def test_the_mean_s_interval_is_that_of_the_normal_distribution():
    values = np.random.default_rng(0).normal(3.0, 1.0, size=400)
    found = mean_estimate(values)
    error = values.std(ddof=1) / np.sqrt(len(values))
    assert found.value == pytest.approx(values.mean()) and found.count == 400
    assert found.low == pytest.approx(values.mean() - 1.96 * error, abs=0.2 * error)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=0.2 * error)


def test_intervals_hold_the_truth_about_as_often_as_they_say(monkeypatch):
    monkeypatch.setattr(intervals, "NUM_RESAMPLES", 400)
    random = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        counts = random.integers(1, 30, size=60)
        nats = counts * random.normal(2.0, 0.5, size=60)
        found = loss_estimate(nats, counts)
        held += found.low <= 2.0 <= found.high
    assert 0.88 <= held / 200 <= 0.99


def test_long_documents_weigh_more():
    assert loss_estimate(np.array([10.0, 90.0]), np.array([10, 30])).value == 2.5


def test_a_paired_change_is_far_more_certain_than_either_loss():
    random = np.random.default_rng(2)
    counts = random.integers(5, 40, size=100)
    hardness = random.normal(2.0, 1.0, size=100)
    before = counts * hardness
    after = counts * (hardness - 0.1 + random.normal(0, 0.02, size=100))
    alone, paired = loss_estimate(after, counts), loss_change(after, before, counts)
    assert paired.low < -0.1 < paired.high < 0
    assert paired.high - paired.low < (alone.high - alone.low) / 10


def test_equal_data_have_equal_intervals_and_one_document_has_none():
    values = np.random.default_rng(3).normal(size=50)
    assert mean_estimate(values) == mean_estimate(values.copy())
    alone = mean_estimate(values[:1])
    assert (alone.low, alone.high, alone.count) == (None, None, 1)


def test_many_documents_in_groups_have_the_interval_of_documents_one_by_one(monkeypatch):
    random = np.random.default_rng(4)
    counts = random.integers(1, 30, size=3000)
    nats = counts * random.normal(2.0, 0.5, size=3000)
    one_by_one = loss_estimate(nats, counts)
    monkeypatch.setattr(intervals, "_MAX_UNITS", 500)
    grouped = loss_estimate(nats, counts)
    assert grouped.value == one_by_one.value
    width = one_by_one.high - one_by_one.low
    assert grouped.low == pytest.approx(one_by_one.low, abs=width / 8)
    assert grouped.high == pytest.approx(one_by_one.high, abs=width / 8)
