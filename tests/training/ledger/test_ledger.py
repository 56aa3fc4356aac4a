"""Which bucket a run's time goes into."""

import json
import os
import time

import pytest

from tests.training.ledger.lives import START, Life, new_folder
from training.events import EventReader, RanksEnded, Span, System
from training.ledger import Account, Ledger, goodput_line
from training.ledger.sentence import show_seconds


@pytest.fixture
def life(tmp_path):
    life = Life(new_folder(tmp_path), num_steps=10)
    life.supervise()
    return life


def seconds(life, now=None):
    return {bucket: round(time, 3) for bucket, time in Ledger.of(life.folder, now).seconds.items()}


def finish(life):
    life.span("checkpoint", 2.0)
    life.span("export", 3.0)
    life.wait(0.5)
    life.end()
    life.supervise("end")


def test_a_life_without_faults(life):
    life.begin(queue_s=5.0)
    life.load(start_s=2.0, checks_s=1.0, rendezvous_s=1.5, init_s=3.0)
    life.steps(1, 1, seconds=4.0, data_s=0.25)
    life.steps(2, 5, seconds=1.0, data_s=0.25)
    life.span("checkpoint", 0.5)
    life.evaluate(2.0, step=5)
    # What was told already is in the step's own account too.
    life.steps(6, 6, seconds=3.5, passed_s=2.5, checkpoint_s=0.5, evaluation_s=2.0)
    life.steps(7, 10, seconds=1.0, checkpoint_s=0.25)
    finish(life)
    ledger = Ledger.of(life.folder)
    assert seconds(life) == {
        "queue": 5.0,
        "start": 2.0,
        "checks": 1.0,
        "rendezvous": 1.5,
        "init": 3.0,
        "compile": 3.0,  # 3.75 without its wait, and 0.75 is the median of the others
        "data_wait": 1.25,
        "step": 0.75 + 4 * 0.75 + 1.0 + 4 * 0.75,
        "evaluation": 2.0,
        "save_stall": 0.5 + 4 * 0.25 + 2.0,
        "export": 3.5,
    }
    assert ledger.goodput == pytest.approx(7.75 / ledger.totals.wall_s)
    assert (ledger.incidents, ledger.steps_lost, ledger.is_live) == ((), 0, False)


def test_a_hang_and_what_it_cost(life):
    life.begin()
    life.load()
    life.steps(1, 6)
    life.saved(4)
    life.fail("hang", after_s=15.0, decide_s=0.5, host="host-3", rank=7, fingerprint="hang:forward")
    life.wait(1.0)
    life.begin()
    life.load(start_s=0.0, checks_s=0.2, rendezvous_s=0.3, init_s=1.0, restore_s=2.0)
    life.steps(5, 10)
    finish(life)
    found = seconds(life)
    assert {bucket: found[bucket] for bucket in ("step", "redone", "hang", "recovery", "restore")} == {
        "step": 10.0,
        "redone": 2.0,
        "hang": 15.0,
        "recovery": 1.5,
        "restore": 2.0,
    }
    (trouble,) = Ledger.of(life.folder).incidents
    assert (trouble.what, trouble.host, trouble.rank, trouble.step) == ("hang", "host-3", 7, 6)
    assert (trouble.fingerprint, trouble.action, trouble.steps_lost) == ("hang:forward", "restart_in_place", 2)
    # Decided, started, checked, met, loaded and stepped.
    assert trouble.recovery_s == pytest.approx(1.5 + 0.2 + 0.3 + 1.0 + 2.0 + 1.0)


def test_the_step_that_a_failure_cuts_off_is_lost_and_no_hang(life):
    life.begin()
    life.load()
    life.steps(1, 4)
    life.saved(4)
    life.fail("signal", after_s=0.75)
    life.begin()
    life.load()
    life.steps(5, 10)
    finish(life)
    found = seconds(life)
    assert (found["redone"], found["step"]) == (0.75, 10.0)
    assert "hang" not in found


def test_what_a_stop_has_saved_is_not_lost_but_the_step_that_it_left_is(life):
    life.begin()
    life.load()
    life.steps(1, 4)
    life.wait(0.75)
    life.span("checkpoint", 2.0)
    life.saved(4)
    life.fail("preempted", after_s=0.25, decide_s=0.0)
    life.wait(1.0)
    life.begin()
    life.load()
    life.steps(5, 10)
    finish(life)
    found = seconds(life)
    assert (found["redone"], found["step"], found["recovery"]) == (0.75, 10.0, 1.25)
    assert Ledger.of(life.folder).steps_lost == 0


def test_steps_beyond_the_checkpoint_are_lost_before_they_are_computed_again(life):
    life.begin()
    life.load()
    life.steps(1, 6)
    life.saved(4)
    assert "redone" not in seconds(life, life.now)
    life.fail("signal", after_s=0.0)
    assert seconds(life, life.now)["redone"] == 2.0
    life.begin()
    life.load()
    assert seconds(life, life.now)["redone"] == 2.0
    # And where the newest one turned out to be damaged, more are.
    life.steps(3, 4)
    assert seconds(life, life.now)["redone"] == 4.0
    assert Ledger.of(life.folder, life.now).steps_lost == 4


def test_steps_that_were_left_out_do_not_count(life):
    life.begin()
    life.load()
    life.steps(1, 3)
    life.steps(4, 4, skipped=True)
    life.steps(5, 10)
    finish(life)
    found = seconds(life)
    assert (found["step"], found["redone"]) == (9.0, 1.0)


def test_time_that_nobody_looked_after_is_stopped(life):
    life.begin()
    life.load()
    life.steps(1, 4)
    life.saved(4)
    life.fail("interrupted", after_s=0.0, decide_s=5.0)
    life.supervise("end")
    life.wait(3600.0)
    life.supervise()
    life.wait(2.0)
    life.begin()
    life.load()
    life.steps(5, 10)
    finish(life)
    found = seconds(life)
    assert (found["stopped"], found["recovery"]) == (3605.0, 2.0), "who asked it to stop had nothing to recover"


def test_a_supervisor_that_was_killed_recovers_nothing_until_it_starts_again(life):
    life.begin()
    life.load()
    life.steps(1, 4)
    life.wait(5.0)
    life.write("node-0", System(values={}))  # the node's last word
    life.wait(600.0)
    life.supervise()
    life.begin()
    life.load()
    life.steps(1, 10)
    finish(life)
    found = seconds(life)
    assert (found["redone"], found["stopped"]) == (9.0, 600.0)


def test_an_attempt_that_was_lost_ended_with_its_last_word_and_not_when_somebody_looked(life):
    life.begin()
    life.load()
    life.steps(1, 4)
    life.wait(5.0)
    life.write("node-0", System(values={}))
    life.wait(8 * 3600.0)
    life.supervise()
    life.end("lost")
    life.begin()
    life.load()
    life.steps(1, 10)
    finish(life)
    found = seconds(life)
    assert (found["redone"], found["stopped"]) == (9.0, 8 * 3600.0)


def test_a_job_that_goes_on_without_its_supervisor_goes_on_stepping(life):
    life.begin()
    life.load()
    life.steps(1, 5)
    life.supervise()  # the next supervisor has found the job
    life.steps(6, 10)
    finish(life)
    found = seconds(life)
    assert found["step"] == 10.0
    assert "stopped" not in found and "recovery" not in found


def test_nodes_that_check_hold_up_those_that_wait(life):
    life.begin()
    life.write("node-0", Span(name="checks", phase="start"))
    life.write("node-1", Span(name="checks", phase="start"))
    life.wait(1.0)
    life.write("node-0", Span(name="checks", phase="end"))
    life.write("node-0", Span(name="rendezvous", phase="start"))
    life.wait(9.0)
    life.write("node-1", Span(name="checks", phase="end"))
    life.write("node-1", Span(name="rendezvous", phase="start"))
    life.wait(0.5)
    for node in ("node-0", "node-1"):
        life.write(node, Span(name="rendezvous", phase="end"))
    found = seconds(life, life.now)
    assert (found["checks"], found["rendezvous"]) == (10.0, 0.5)


def test_a_job_that_waits_in_its_queue(life):
    life.begin()
    record = life.folder.attempt(1) / "attempt.json"
    record.write_text(json.dumps({"number": 1, "started": START, "phases": {"queued": START}}))
    assert seconds(life, START + 70) == {"queue": 70.0}


def test_an_attempt_that_fails_while_it_loads(life):
    life.begin()
    life.load(init_s=3.0)
    life.fail("exception", after_s=2.0)
    found = seconds(life)
    # It has not done a step: nothing was lost but the time of the first.
    assert (found["compile"], Ledger.of(life.folder).steps_lost) == (2.0, 0)
    assert "redone" not in found


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_clock_that_is_set_while_training(life, jump):
    life.begin()
    life.load()
    life.steps(1, 4)
    life.now += jump
    life.steps(5, 10)
    life.span("checkpoint", 2.0)
    life.now -= jump
    life.end()
    life.supervise("end")
    found = seconds(life)
    assert (found["step"], found["save_stall"]) == (10.0, 2.0)


def test_clocks_that_differ_cost_no_second(life):
    life.begin()
    life.load()
    life.steps(1, 4)
    life.saved(4)
    # The node's clock is a minute behind, the next attempt's rank a minute ahead.
    life.write("node-0", RanksEnded(node=0, host="h", what="signal"), ahead=-60.0)
    life.end("signal")
    life.begin()
    life.now += 60
    life.load()
    life.steps(5, 6)
    life.now -= 60
    ledger = Ledger.of(life.folder, life.now)
    assert ledger.totals.wall_s == pytest.approx(life.now - START)
    assert ledger.seconds["step"] >= 4.0


def test_half_written_files_and_missing_records_are_survived(life):
    life.begin()
    life.load()
    life.steps(1, 4)
    (life.folder.attempt(1) / "attempt.json").write_text('{"number": 1, "star')
    life.begin()
    (life.folder.attempt(2) / "attempt.json").unlink()
    life.load()
    life.steps(3, 6)
    with (life.folder.events / "rank-0.jsonl").open("ab") as file:
        file.write(b'{"kind": "train_step", "time": 17\n{"kind": "of a later version", "time": 1}\n{"ki')
    found = seconds(life, life.now)
    assert (found["step"], found["redone"]) == (6.0, 2.0)
    assert Ledger.of(life.folder, life.now).totals.num_attempts == 2


def test_a_run_without_attempts_has_no_ledger(life):
    ledger = Ledger.of(life.folder)
    assert (ledger.totals, ledger.intervals, ledger.seconds, ledger.goodput) == (None, (), {}, 0.0)


def test_the_evaluation_s_job_is_no_part_of_it(life):
    life.begin()
    life.load()
    life.steps(1, 10)
    finish(life)
    before = seconds(life)
    life.wait(100.0)
    life.span("load", 5.0, source="evaluation-rank-0")
    life.write("evaluation-node-0", RanksEnded(node=0, host="h"))
    assert seconds(life) == before


def test_whether_a_run_goes_on_is_seen_by_its_supervisor_s_heartbeat(life):
    life.begin()
    life.load()
    life.steps(1, 4)
    heartbeat = life.folder.launcher_heartbeat
    heartbeat.parent.mkdir(parents=True)
    heartbeat.touch()
    assert Ledger.of(life.folder).is_live
    assert Ledger.of(life.folder).totals.wall_s == pytest.approx(time.time() - START, abs=60)
    long_ago = time.time() - 600
    os.utime(heartbeat, (long_ago, long_ago))
    dead = Ledger.of(life.folder)
    assert not dead.is_live
    assert dead.totals.wall_s == pytest.approx(life.now - START)


def test_an_account_that_grows_is_that_of_all_events(life):
    account, reader = Account(life.folder), EventReader(life.folder.events)
    life.begin()
    life.load()
    for step in range(1, 11):
        life.steps(step, step, seconds=1.0 + step / 10)
        account.take(reader.poll(), life.now)
        assert account.totals(life.now) == Ledger.of(life.folder, life.now).totals


def test_the_line_about_it_names_what_took_longest():
    from training.ledger import Totals

    totals = Totals(
        0, 100_000_000, {"step": 87_000_000, "redone": 6_500_000, "recovery": 6_000_000, "init": 500_000}, 2
    )
    assert goodput_line(totals) == "goodput 87 % over 2 attempts (redone 6.5 s, recovery 6.0 s, init 0.5 s)"
    only = Totals(0, 1_000_000, {"step": 1_000_000}, 1)
    assert goodput_line(only) == "goodput 100 % over 1 attempt"
    assert [show_seconds(each) for each in (0.04, 9.96, 59.6, 192, 7500, 190_000)] == [
        "0.0 s",
        "10 s",
        "1 min 0 s",
        "3 min 12 s",
        "2 h 5 min",
        "2 d 4 h",
    ]
