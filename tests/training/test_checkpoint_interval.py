"""How often a run should save."""

import math
import time

import pytest

from training.checkpoint import advice
from training.checkpoint.advice import IntervalAdvice
from training.checkpoint.interval import (
    MOST_LOST_S,
    SaveCost,
    best_interval_s,
    mean_time_between_failures_s,
    suggestion,
)
from training.events import EventWriter, Incident, Note

DAY = 86_400.0


def test_four_nodes_of_a_fleet_fail_every_38_days():
    assert mean_time_between_failures_s(4) == pytest.approx(38.5 * DAY, rel=0.01)


def test_a_runs_own_incidents_count_with_the_fleets():
    assert mean_time_between_failures_s(4, 0, DAY) == mean_time_between_failures_s(4)
    assert mean_time_between_failures_s(1, 5, 3600) == pytest.approx(720, rel=0.01)


def test_the_interval_is_youngs_within_what_is_lost_and_written():
    assert best_interval_s(4, 7200) == pytest.approx(math.sqrt(2 * 7200 * 4))
    assert best_interval_s(4, 38 * DAY) == MOST_LOST_S
    assert best_interval_s(0.01, 720, write_s=90) == 90


@pytest.mark.parametrize("interval", [60.0, 120.0, 240.0, 479.0])
def test_youngs_interval_loses_least(interval):
    def lost_share(every):
        return 4 / every + every / (2 * 7200)

    assert lost_share(best_interval_s(4, 7200)) <= lost_share(interval)


@pytest.mark.parametrize(
    ("interval_s", "told"), [(100, True), (130, False), (240, False), (470, False), (490, True)]
)
def test_only_what_is_off_by_more_than_twice_is_told(interval_s, told):
    words = suggestion(SaveCost(4, 4, interval_s, 10), 7200)  # the best is 240 s
    assert (words is not None) == told


def test_the_words_say_what_was_seen_and_what_to_set():
    words = suggestion(SaveCost(4.1, 9, 1000, 500), 7200)
    assert words == (
        "a save takes 9 s and holds training up for 4.1 s; with a failure every 2 h, one every 4.05 min "
        "(121 steps) would lose least; now it is every 16.7 min (500 steps): set checkpoint.every_steps to 121, "
        "or checkpoint.every_s to 243"
    )


def test_frequent_saves_that_cost_nothing_are_not_worth_a_word():
    assert suggestion(SaveCost(0.01, 1, 10, 100), 38 * DAY) is None
    assert suggestion(SaveCost(0.2, 1, 10, 100), 38 * DAY) is not None


def test_the_advice_is_given_once_after_the_second_save(tmp_path, monkeypatch):
    monkeypatch.setattr(advice.dist, "get_world_size", lambda: 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    writer = EventWriter(tmp_path, "train")
    writer.write(Note(time=time.time() - 3600, text="begins"))
    for _ in range(5):
        writer.write(Incident(what="signal"))
    watch = IntervalAdvice(tmp_path)
    now = time.monotonic()
    watch.saved(100, now - 700)
    assert watch.written(1.0) is None
    watch.saved(200, now)
    watch.held_up(2.0)
    words = watch.written(1.0)
    # √(2 · 720 · 2) = 54 s
    assert "a failure every 12 min, one every 53." in words and "every 11.7 min (100 steps)" in words
    assert watch.written(1.0) is None
