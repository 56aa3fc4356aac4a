"""The ratios are taken against the better peer of the same round."""

import pytest

from benchmarks.result import Result
from benchmarks.sft import figures


def result(seconds, gib, loss=2.0):
    return Result([loss] * 4, [9.0, 9.0, seconds, seconds], int(gib * 2**30))


def test_ratios_are_against_the_better_peer():
    rounds = [
        {
            "ours_fastest": result(1, 4),
            "trainer_fastest": result(3, 8),
            "trl_fastest": result(2, 9),
            "ours_leanest": result(2, 1.5),
            "trainer_leanest": result(6, 5),
            "trl_leanest": result(5, 3, loss=2.002),
        }
    ]
    *scale, speed, memory, loss = figures(rounds, [100] * 4, "fp32")
    assert speed.value == pytest.approx(2.0) and not speed.falls_short
    assert memory.value == pytest.approx(0.5) and not memory.falls_short
    assert loss.value == pytest.approx(1e-3) and loss.goal == "<=0.001"
    rates = {figure.name: figure.value for figure in scale}
    assert rates["sft.fp32.ours_fastest.supervised_tokens_per_s"] == 100
    assert rates["sft.fp32.trl_leanest.peak_gib"] == pytest.approx(3)
