import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.tokenize_dataset.mix import passes, repeats


def hashes(count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, (count, 2), dtype=np.uint64)


def test_without_weights_every_row_is_taken_once():
    assert passes([10, 1000], [None, None]) == [1.0, 1.0]
    assert repeats(hashes(100), 1.0).tolist() == [1] * 100


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0.01, 100)), min_size=1, max_size=6))
def test_an_epoch_is_as_long_as_all_sources_and_each_has_its_share(sources):
    tokens, weights = zip(*sources, strict=True)
    taken = [count * times for count, times in zip(tokens, passes(tokens, weights), strict=True)]
    assert sum(taken) == pytest.approx(sum(tokens))
    for share, weight in zip(taken, weights, strict=True):
        assert share / sum(taken) == pytest.approx(weight / sum(weights))


@pytest.mark.parametrize("num_passes", [0.25, 1.0, 2.6, 7.0])
def test_whole_passes_and_a_part_of_one(num_passes):
    times = repeats(hashes(20_000), num_passes)
    assert set(times.tolist()) <= {int(num_passes), int(num_passes) + 1}
    assert times.mean() == pytest.approx(num_passes, abs=0.02)


def test_a_row_that_is_taken_stays_when_the_weight_grows():
    some = hashes(1000)
    assert (repeats(some, 0.3) <= repeats(some, 0.6)).all()


def test_the_split_does_not_decide_on_the_passes():
    some = hashes(50_000)
    some[:, 0] //= 20  # as rows that were held out, or were not, are
    assert repeats(some, 0.5).mean() == pytest.approx(0.5, abs=0.01)
