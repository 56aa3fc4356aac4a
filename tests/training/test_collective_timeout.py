"""A collective never ends a run before the node says which rank hangs."""

from datetime import timedelta

import pytest

from training.collective_timeout import collective_timeout
from training.config.resilience import ResilienceConfig


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({}, 1860),
        ({"hang_timeout_s": 7200}, 7260),
        ({"hang_timeout_s": 5, "stall_timeout_s": 20}, 660),
        ({"hang_timeout_s": None, "stall_timeout_s": 3600}, 3660),
    ],
)
def test_it_is_longer_than_what_the_node_waits(limits, seconds):
    assert collective_timeout(ResilienceConfig(**limits)) == timedelta(seconds=seconds)


def test_without_a_limit_there_is_none():
    assert collective_timeout(ResilienceConfig(stall_timeout_s=None)) > timedelta(days=1)
