"""Limits of time."""

import time

import pytest

from components.cluster.job_state import Phase
from components.jobs.deadlines import Deadlines
from training.config import ResilienceConfig

QUEUED, STARTING, RUNNING = Phase.QUEUED, Phase.STARTING, Phase.RUNNING

LIMITS = {"queue_timeout_s": 10, "start_timeout_s": 20, "run_timeout_s": 100, "stall_timeout_s": 30}


def deadlines(**limits):
    return Deadlines(ResilienceConfig(**limits), now=1000.0)


def looks(watcher, *rows):
    """What is overdue after each look: phase, whether something was said, seconds."""
    found = []
    for phase, progressed, seconds in rows:
        overdue = watcher.check(phase, progressed=progressed, now=1000.0 + seconds)
        found.append(overdue and overdue.what)
    return found


# Deadlines


@pytest.mark.parametrize(
    "rows, last",
    [
        ([(QUEUED, False, 0), (QUEUED, False, 10)], None),
        ([(QUEUED, False, 0), (QUEUED, False, 10.1)], "queue_timeout"),
        ([(QUEUED, False, 9), (STARTING, False, 9), (STARTING, False, 29)], None),
        ([(QUEUED, False, 9), (STARTING, False, 9), (STARTING, False, 29.1)], "start_timeout"),
        ([(STARTING, False, 0), (RUNNING, False, 20), (RUNNING, False, 50)], None),
        ([(STARTING, False, 0), (RUNNING, False, 20), (RUNNING, False, 51)], "stall_timeout"),
        ([(RUNNING, False, 0), (RUNNING, True, 30), (RUNNING, False, 60)], None),
        ([(RUNNING, False, 0), (RUNNING, True, 30), (RUNNING, False, 61)], "stall_timeout"),
        ([(RUNNING, True, t) for t in range(0, 101, 20)], None),
        ([(RUNNING, True, t) for t in range(0, 121, 20)], "run_timeout"),
    ],
)
def test_each_part_of_an_attempt_has_its_limit(rows, last):
    *before, end = looks(deadlines(**LIMITS), *rows)
    assert not any(before)
    assert end == last


def test_the_wait_in_a_queue_does_not_count_as_the_start():
    rows = [(QUEUED, False, 0), (QUEUED, False, 5000), (STARTING, False, 5000), (STARTING, False, 5019)]
    assert looks(deadlines(start_timeout_s=20), *rows) == [None] * 4


def test_an_attempt_that_was_put_back_into_the_queue_has_its_times_anew():
    rows = [
        (RUNNING, True, 0),
        (QUEUED, False, 90),
        (STARTING, False, 95),
        (RUNNING, True, 99),
        (RUNNING, True, 198),
    ]
    assert looks(deadlines(**LIMITS), *rows) == [None] * 5


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPING, Phase.GONE])
def test_a_job_that_is_ending_is_not_overdue(phase):
    assert looks(deadlines(**LIMITS), (RUNNING, True, 0), (phase, False, 5000)) == [None, None]


@pytest.mark.parametrize("phase", [QUEUED, STARTING, RUNNING])
def test_a_limit_that_was_taken_away_is_never_passed(phase):
    none = dict.fromkeys(LIMITS)
    assert looks(deadlines(**none), (phase, False, 0), (phase, False, 10**9)) == [None, None]


@pytest.mark.parametrize(
    "phase, what",
    [(QUEUED, "queue_timeout"), (STARTING, "start_timeout"), (RUNNING, "stall_timeout")],
)
def test_the_sentence_names_the_setting_and_how_long_it_took(phase, what):
    watcher = deadlines(**LIMITS)
    watcher.check(phase, progressed=False, now=1000.0)
    overdue = watcher.check(phase, progressed=False, now=1042.4)
    assert "for 42 s" in overdue.sentence
    assert overdue.sentence.endswith(f"resilience.{what}_s is {LIMITS[f'{what}_s']}")


def test_a_launcher_that_starts_again_does_not_begin_the_times_anew():
    first = deadlines(**LIMITS)
    assert looks(first, (QUEUED, False, 0)) == [None]
    began = {name: at - 11 for name, at in first.began.items()}
    assert looks(Deadlines(ResilienceConfig(**LIMITS), 1000.0, began), (QUEUED, False, 3)) == ["queue_timeout"]
    # One that was never queued then, or whose clock jumped back, has all its time.
    assert looks(Deadlines(ResilienceConfig(**LIMITS), 1000.0, began), (STARTING, False, 3)) == [None]
    ahead = {name: at + 10**6 for name, at in first.began.items()}
    again = Deadlines(ResilienceConfig(**LIMITS), 1000.0, ahead)
    assert looks(again, (QUEUED, False, 3), (QUEUED, False, 14)) == [None, "queue_timeout"]


def test_of_phases_that_follow_it_takes_up_only_the_one_that_goes_on():
    watcher = Deadlines(ResilienceConfig(**LIMITS), 1000.0, {"queued": time.time() - 9, "starting": 1.0})
    assert looks(watcher, (QUEUED, False, 0), (STARTING, False, 0), (STARTING, False, 19)) == [None] * 3
    assert watcher.waited_s(1019.0) == pytest.approx(19)
