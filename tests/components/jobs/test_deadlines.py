"""Limits of time, and what is decided after an attempt that failed."""

import pytest

from components.cluster.job_state import Phase
from components.jobs.deadlines import Deadlines
from components.jobs.policy import decide
from components.jobs.report import failure_page, newest_report, write_report
from training.config import ResilienceConfig
from training.events import Incident
from training.run_folder import RunFolder

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


# Policy


@pytest.mark.parametrize("what", ["invalid", "interrupted", "queue_timeout", "start_timeout", "run_timeout"])
def test_what_would_end_the_same_way_is_not_tried_again(what):
    decision = decide(Incident(attempt=1, what=what), attempts_made=1, max_attempts=9)
    assert not decision.retry
    assert decision.reason


@pytest.mark.parametrize("what", ["signal", "exception", "oom", "evicted", "preempted", "stall_timeout"])
@pytest.mark.parametrize("made, allowed, again", [(1, 1, False), (1, 2, True), (2, 2, False), (2, 3, True)])
def test_anything_else_is_tried_as_often_as_allowed(what, made, allowed, again):
    decision = decide(Incident(attempt=made, what=what), made, allowed)
    assert decision.retry == again
    assert decision.reason == (
        f"attempt {made + 1} of {allowed} goes on from what was saved"
        if again
        else f"resilience.max_attempts is {allowed}"
    )


# The page about a failure


def page(tmp_path, made=1, **incident):
    incident = Incident(**{"attempt": 1, "what": "exception", **incident})
    return failure_page(RunFolder(tmp_path, "a-run"), incident, decide(incident, made, 2))


def test_the_page_tells_what_where_and_what_comes_next(tmp_path):
    text = page(tmp_path, what="oom", exit_code=137, node="a-run-1-worker-3", evidence="worker-3: OOMKilled\n")
    first, second, third, *_ = text.split("\n\n")
    assert first == "## a-run: attempt 1 failed"
    assert second.startswith("**oom** (exit code 137) in the pod `a-run-1-worker-3`: ")
    assert "cluster.memory_per_node" in second
    assert third == "Next: attempt 2 of 2 goes on from what was saved."
    assert "```text\nworker-3: OOMKilled\n```" in text
    assert str(tmp_path / "runs/a-run/attempts") in text


def test_the_page_of_a_rank_names_it_and_ends_the_run(tmp_path):
    text = page(tmp_path, made=2, rank=0, exit_code=1)
    assert "**exception** (exit code 1), first at rank 0: " in text
    assert "It ends here: resilience.max_attempts is 2." in text
    assert "(no words were left)" in text


@pytest.mark.parametrize("words", ["```\n# not a heading\n```", "a ```` b", "`", "~~~", "no ticks", "`" * 30])
def test_words_cannot_leave_their_block(tmp_path, words):
    text = page(tmp_path, evidence=f"{words}\n**not bold**")
    lines = text.splitlines()
    opening = next(line for line in lines if line.endswith("text") and set(line[:-4]) == {"`"})
    fence = opening.removesuffix("text")
    begin = lines.index(opening)
    # CommonMark ends a block at a line of at least as many ticks.
    end = next(
        i for i in range(begin + 1, len(lines)) if lines[i].strip("`") == "" and len(lines[i]) >= len(fence)
    )
    assert "\n".join(lines[begin + 1 : end]) == f"{words}\n**not bold**"


@pytest.mark.parametrize(
    "what",
    [
        *("invalid", "interrupted", "signal", "exception", "oom", "evicted", "preempted"),
        *("queue_timeout", "start_timeout", "run_timeout", "stall_timeout"),
    ],
)
def test_every_class_of_incident_has_a_meaning_in_words(tmp_path, what):
    second = page(tmp_path, what=what).split("\n\n")[1]
    assert not second.endswith(f": {what}.")


def test_the_newest_page_is_that_of_the_last_attempt_only(tmp_path):
    folder = RunFolder(tmp_path, "a-run")
    assert newest_report(folder) is None
    folder.attempt(1).mkdir(parents=True)
    incident = Incident(attempt=1, what="exception", evidence="ünï")
    path = write_report(folder, incident, decide(incident, 1, 2))
    assert path == folder.attempt(1) / "report.md"
    assert "ünï" in newest_report(folder)
    folder.attempt(2).mkdir()
    assert newest_report(folder) is None
