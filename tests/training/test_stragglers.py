"""Who is called slow: the right rank, after two windows, once; and nobody on a machine that is merely busy."""

import random
import statistics

from hypothesis import given
from hypothesis import strategies as st

from training.stragglers import StragglerDetector

seeds = st.integers(0, 2**32)
sizes = st.integers(2, 16)


def busy_window(draw, num_ranks, num_probes=20):
    """Means of probes of 3 ms, each of which other work may interrupt for some milliseconds."""
    return [
        statistics.fmean(0.003 * draw.uniform(0.9, 1.3) + 0.004 * (draw.random() < 0.4) for _ in range(num_probes))
        for _ in range(num_ranks)
    ]


def throttled_window(draw, num_probes=20):
    """The same of a CPU that may run for 20 ms of every 100: few probes meet the end of their time, for 80 ms."""
    return statistics.fmean(0.003 + 0.08 * (draw.random() < 3 / 20) for _ in range(num_probes))


def ranks(stragglers):
    return [straggler.rank for straggler in stragglers]


@given(seed=seeds, num_ranks=sizes)
def test_a_busy_machine_has_no_straggler(seed, num_ranks):
    draw, detector = random.Random(seed), StragglerDetector(1.5)
    assert not any(detector.judge(busy_window(draw, num_ranks)) for _ in range(20))


@given(seed=seeds, num_ranks=sizes, factor=st.floats(2, 50))
def test_ranks_that_are_all_slow_are_no_stragglers(seed, num_ranks, factor):
    draw, detector = random.Random(seed), StragglerDetector(1.5)
    assert not any(
        detector.judge([factor * seconds for seconds in busy_window(draw, num_ranks)]) for _ in range(10)
    )


@given(num_ranks=sizes, data=st.data(), factor=st.floats(1.6, 100))
def test_the_slow_rank_is_named_in_the_second_window_and_once(num_ranks, data, factor):
    slow = data.draw(st.integers(0, num_ranks - 1))
    window = [0.003 * (factor if rank == slow else 1) for rank in range(num_ranks)]
    detector = StragglerDetector(1.5)
    named = [detector.judge(window) for _ in range(5)]
    assert list(map(ranks, named)) == [[], [slow], [], [], []]
    assert named[1][0].seconds == window[slow] and named[1][0].others_s == 0.003


@given(seed=seeds, data=st.data())
def test_a_cpu_that_is_held_to_a_fifth_is_found(seed, data):
    draw, detector = random.Random(seed), StragglerDetector(1.5)
    num_ranks = data.draw(st.integers(2, 8))
    slow = data.draw(st.integers(0, num_ranks - 1))
    named = []
    # A window may happen to meet no pause at all, and two have to be slow in a row.
    for _ in range(8):
        window = [0.003 * draw.uniform(1, 1.2) for _ in range(num_ranks)]
        window[slow] = throttled_window(draw)
        named += ranks(detector.judge(window))
    assert slow in named and set(named) == {slow}


def test_it_is_told_again_after_it_recovered():
    detector = StragglerDetector(1.5)
    slow, fine = [1.0, 3.0], [1.0, 1.0]
    named = [ranks(detector.judge(window)) for window in (slow, slow, fine, slow, slow, slow)]
    assert named == [[], [1], [], [], [1], []]


def test_a_single_slow_window_is_no_straggler():
    detector = StragglerDetector(1.5)
    assert not any(detector.judge(window) for window in ([1.0, 3.0], [1.0, 1.0], [3.0, 1.0], [1.0, 3.0]))


def test_where_ranks_differ_much_anyway_a_difference_tells_nothing():
    detector = StragglerDetector(1.5)
    # 2.0 is more than 1.5 times the others' median, but not beyond it by three times their spread.
    assert not any(detector.judge([1.0, 1.5, 2.0, 1.1, 2.0]) for _ in range(3))


def test_a_rank_alone_is_compared_with_nobody():
    assert StragglerDetector(1.5).judge([1.0]) == []
