"""What is decided after an attempt that failed."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.jobs.history import Past, without_progress
from components.jobs.policy import Situation, blamed, decide, why_kept
from training.config import ResilienceConfig
from training.events import Incident

ALIVE = Situation(saved_from=0, saved=0, num_nodes=4, usual_nodes=4)
ENDED = dataclasses.replace(ALIVE, is_alive=False)
PROGRESS = dataclasses.replace(ALIVE, saved_from=10, saved=20)
STUCK = dataclasses.replace(ALIVE, saved_from=20, saved=20)


def incident(what, **more):
    return Incident(**{"what": what, "fingerprint": what, "host": "a", "rank": 0, "step": 5, **more})


def past(what, number=1, **more):
    return Past(number, what, **{"fingerprint": what, "saved_from": 20, "saved": 20, **more})


def decided(what, history=(), situation=STUCK, limits=None, **more):
    return decide(incident(what, **more), tuple(history), ResilienceConfig(**limits or {}), situation)


IN_PLACE = ("signal", "network", "hang", "storage", "oom", "exception", "nonfinite")


@pytest.mark.parametrize("what", IN_PLACE)
def test_what_may_pass_is_tried_again_in_place_and_elsewhere_once_the_nodes_have_left(what):
    first = decided(what)
    assert (first.action, first.num_nodes, first.exclude) == ("restart_in_place", 4, {}) and first.counts
    assert decided(what, situation=ENDED).action == "restart_elsewhere"


@pytest.mark.parametrize("what", ["invalid", "interrupted", "queue_timeout", "start_timeout", "run_timeout"])
def test_what_would_end_the_same_way_is_not_tried_again(what):
    decision = decided(what)
    assert (decision.action, decision.num_nodes) == ("stop", None) and decision.reason and not decision.is_final


def test_attempts_without_a_newer_checkpoint_are_counted_and_progress_begins_the_count_anew():
    one, two = past("signal", 1), past("signal", 2, host="b")
    assert "2 of 3 attempts in a row" in decided("signal", [one], host="c").reason
    end = decided("signal", [one, two], host="c")
    assert end.action == "stop" and "no checkpoint newer than that of step 20" in end.reason
    assert "resilience.max_attempts is 3" in end.reason and not end.is_final
    assert decided("signal", [one, two], PROGRESS, host="c").reason == "it goes on from the checkpoint of step 20"
    moved = past("signal", 2, saved_from=10)
    assert decided("signal", [one, moved, two], host="c").retry
    assert decided("signal", [one] * 8, limits={"max_attempts": 10}, host="c").retry


def test_a_disk_that_does_not_do_its_work_is_given_time_and_more_the_second_time():
    one, saved = past("storage", 1, host="b"), past("storage", 1, host="b", saved_from=10)
    assert [decided("signal", history).pause_s for history in ([], [one])] == [0, 0]
    assert [decided("storage", history).pause_s for history in ([], [saved], [one])] == [15, 15, 45]
    limits = {"max_attempts": 10}
    assert decided("storage", [one] * 5, limits=limits).pause_s == 45
    assert decided("storage", [one, past("signal", 2, host="b")], limits=limits).pause_s == 15
    # A disk that all share is no fault of the machine that met it twice.
    again = decided("storage", [past("storage", host=blamed(incident("storage")))])
    assert (again.action, again.pause_s, again.exclude) == ("restart_in_place", 45, {})
    unfit = decided("storage", [one], dataclasses.replace(STUCK, suspects={"a": "it is labelled so"}))
    assert (unfit.action, unfit.pause_s, list(unfit.exclude)) == ("restart_elsewhere", 0, ["a"])
    end = decided("storage", [one, one], host="c")
    assert end.action == "stop" and not end.is_final, "it counts as any other fault, and may be tried again later"


def test_a_fault_in_every_cycle_stops_after_three_of_them():
    zero = dataclasses.replace(ALIVE, saved_from=0, saved=0)
    history, actions = [], []
    for number in range(1, 5):
        decision = decided("signal", history, zero, host=f"host-{number}")
        actions.append(decision.action)
        history.append(past("signal", number, saved_from=0, saved=0))
    assert actions[:3] == ["restart_in_place", "restart_in_place", "stop"]


def test_a_preemption_is_free_and_the_job_is_made_elsewhere():
    gone = [past("preempted", n, counts=False) for n in range(9)]
    decision = decided("preempted", gone)
    assert (decision.action, decision.counts) == ("restart_elsewhere", False)
    assert decided("signal", [past("signal", 1, host="b"), *gone], host="c").retry
    assert not decided("signal", [past("signal", 1), *gone, past("signal", 8)], host="c").retry


def test_the_same_failure_twice_without_progress_is_the_program_s():
    again = decided("exception", [past("exception", 4)])
    assert again.action == "stop" and again.is_final and "the same failure as in attempt 4" in again.reason
    assert decided("exception", [past("exception", fingerprint="another")]).retry
    assert decided("exception", [past("exception")], PROGRESS).retry
    between = [past("exception"), past("signal", 2, saved_from=10)]
    assert decided("exception", between).retry, "a newer checkpoint was saved since"
    assert not decided("exception", [past("exception"), past("signal", 2)]).retry
    assert decided("exception", [past("exception")], rank=None).retry, "no rank has said what it is"


@pytest.mark.parametrize(
    "fingerprint, at_once",
    [
        ("ModuleNotFoundError@a/b.py:<module> No module named 'x'", True),
        ("TypeError@a/b.py:f unsupported operand", True),
        ("my.package.ValueError@a/b.py:f bad", False),
        ("RuntimeError@nn/linear.py:forward mat# and mat# shapes cannot be multiplied (#x# and #x#)", True),
        ("RuntimeError@a/b.py:f the device is gone", False),
        ("OSError@a/b.py:f Stale file handle", False),
    ],
)
def test_a_mistake_before_the_first_step_stops_within_two_attempts(fingerprint, at_once):
    start = dataclasses.replace(ALIVE, saved_from=0, saved=0)
    if fingerprint.startswith("my."):
        at_once = True
    first = decided("exception", (), start, fingerprint=fingerprint, step=None)
    assert first.retry is not at_once and first.is_final is at_once
    before = [past("exception", fingerprint=fingerprint, saved_from=0, saved=0)]
    assert decided("exception", before, start, fingerprint=fingerprint, step=None).is_final
    assert decided("exception", (), start, fingerprint=fingerprint, step=3).retry, "it had trained"


def test_out_of_memory_twice_running_is_the_end_even_with_progress():
    assert not decided("oom", [past("oom")], PROGRESS).retry
    assert decided("oom", [past("oom"), past("signal", 2, saved_from=1)], PROGRESS).retry
    assert not decided("oom", [past("oom"), past("preempted", 2, counts=False)], PROGRESS).retry


def nonfinite(history, nonfinite="stop", **more):
    return decided(
        "nonfinite", history, fingerprint="nonfinite:step-7", step=7, limits={"nonfinite": nonfinite}, **more
    )


def test_a_loss_that_is_not_finite_is_rolled_back_then_stopped_or_left_out():
    seen = past("nonfinite", fingerprint="nonfinite:step-7")
    assert nonfinite([]).action == "restart_in_place" and nonfinite([]).skip is None
    assert nonfinite([seen]).action == "stop" and nonfinite([seen]).is_final
    skips = nonfinite([seen], "skip")
    assert (skips.action, skips.skip) == ("restart_in_place", 7) and "step 7" in skips.reason
    skipped = dataclasses.replace(seen, number=2, skipped=True)
    assert nonfinite([seen, skipped], "skip").action == "stop", "leaving it out did not help"
    # At the same step it is the same, also when checkpoints between were saved.
    assert nonfinite([dataclasses.replace(seen, saved_from=0)], situation=PROGRESS).action == "stop"
    assert nonfinite([past("nonfinite", fingerprint="nonfinite:step-6")]).retry


def test_the_same_machine_blamed_twice_running_is_replaced():
    decision = decided("hang", [past("signal", host="a")])
    assert decision.action == "restart_elsewhere" and decision.num_nodes == 4
    assert decision.exclude == {"a": "to blame for two incidents running (signal, hang)"}
    assert not decided("hang", [past("signal", host="b")]).exclude
    assert not decided("hang", [past("signal", host="a"), past("signal", 2, host="b")]).exclude
    assert decided("hang", [past("signal", host="a"), past("preempted", 2, counts=False)]).exclude
    assert not decided("exception", [past("signal", host="a")]).exclude, "an error is the program's"
    assert blamed(incident("exception")) == "" and blamed(incident("hang")) == "a"


def suspects(*hosts):
    return dict.fromkeys(hosts, "a fatal XID")


def test_a_suspect_is_replaced_and_told():
    decision = decided("node_suspect", situation=dataclasses.replace(STUCK, suspects=suspects("b")))
    assert decision.exclude == {"b": "a fatal XID"} and decision.action == "restart_elsewhere"
    assert decision.reason == "b is replaced: a fatal XID"


@pytest.mark.parametrize(
    "more, hosts, trips",
    [
        ({}, ("a", "b"), False),
        ({}, ("a", "b", "c"), True),
        ({"excluded": frozenset("d")}, ("a",), False),
        ({"excluded": frozenset("de")}, ("a",), True),
        ({"excluded": frozenset("ab")}, ("a", "b"), False),
        ({"num_hosts": 8}, ("a", "b", "c", "d"), False),
        ({"usual_nodes": 1}, ("a",), False),
    ],
)
def test_the_breaker_excludes_no_more_than_half(more, hosts, trips):
    situation = dataclasses.replace(STUCK, suspects=suspects(*hosts), **more)
    decision = decided("node_suspect", situation=situation)
    assert (not decision.exclude) is trips
    assert (decision.action == "restart_in_place") is trips
    assert ("no machine is excluded" in decision.reason) is trips
    kept = why_kept(suspects(*hosts), ResilienceConfig(), situation)
    assert kept == ("it may not be excluded now" if trips else "")


@pytest.mark.parametrize("more", [{}, {"is_alive": False}, {"suspects": suspects("vm")}, {"saved": 30}])
@pytest.mark.parametrize("what", ["signal", "hang", "node_lost", "node_suspect"])
def test_of_the_only_machine_nothing_is_said_of_excluding_it(what, more):
    situation = dataclasses.replace(STUCK, num_hosts=1, **more)
    decision = decided(what, [past(what, host="vm")], situation, host="vm")
    assert decision.retry and not decision.exclude and decision.reason.startswith("it goes on from")
    assert (decision.action == "restart_in_place") is situation.is_alive
    assert why_kept(suspects("vm"), ResilienceConfig(), situation) == "there is no other machine"


def test_machines_are_not_excluded_where_that_is_off_or_there_was_no_replacement():
    situation = dataclasses.replace(STUCK, suspects=suspects("a"))
    off = decided("node_suspect", situation=situation, limits={"exclude_for_s": 0})
    assert not off.exclude and off.retry and "resilience.exclude_for_s is 0" in off.reason
    kept = decided("node_suspect", situation=dataclasses.replace(situation, needed=frozenset("a")))
    assert not kept.exclude and kept.retry and "no replacement" in kept.reason


HOSTS = st.sampled_from("abcdef")
CLASSES = st.sampled_from(
    [*IN_PLACE, "preempted", "evicted", "node_lost", "node_suspect", "stall_timeout", "invalid"]
)
PASTS = st.lists(
    st.builds(
        Past,
        number=st.integers(1, 50),
        what=CLASSES,
        fingerprint=st.sampled_from(["", "x", "y", "oom"]),
        host=st.one_of(st.just(""), HOSTS),
        saved_from=st.integers(0, 30),
        saved=st.integers(0, 30),
        counts=st.booleans(),
    ),
    max_size=8,
)
SITUATIONS = st.builds(
    Situation,
    saved_from=st.integers(0, 30),
    saved=st.integers(0, 30),
    num_nodes=st.integers(1, 6),
    usual_nodes=st.just(6),
    is_alive=st.booleans(),
    suspects=st.dictionaries(HOSTS, st.just("why"), max_size=6),
    excluded=st.frozensets(HOSTS, max_size=3),
)


@given(CLASSES, HOSTS, PASTS, SITUATIONS, st.integers(1, 5))
def test_whatever_happens_a_decision_keeps_its_promises(what, host, history, situation, most):
    limits = ResilienceConfig(max_attempts=most)
    happened = incident(what, host=host, fingerprint="x")
    decision = decide(happened, history, limits, situation)
    assert decision == decide(happened, list(history), limits, situation), "it is a function"
    assert decision.reason and "\n" not in decision.reason
    assert not decision.exclude or len(situation.excluded | decision.exclude.keys()) <= 3
    assert not (decision.action == "restart_in_place" and (not situation.is_alive or decision.exclude))
    assert (decision.num_nodes is None) is (decision.action == "stop")
    if what == "preempted":
        assert decision.retry and not decision.counts
    elif decision.retry:
        stuck = situation.saved <= situation.saved_from
        assert not stuck or without_progress(history) + 1 < most
    if what == "invalid":
        assert not decision.retry
