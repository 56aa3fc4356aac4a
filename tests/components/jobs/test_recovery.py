"""Attempt after attempt: what is done after what nodes tell, with nodes that a script plays."""

import json
import time

import pytest

from components.cluster.job_state import Phase
from components.jobs import policy
from components.jobs.attempts import read_record, write_record
from components.jobs.describe import TaskSettings
from components.jobs.exclusions import exclude, excluded
from components.jobs.history import Past, history_of, without_progress
from components.jobs.supervisor import Work, bring_home
from components.step import Step, StepFailed
from tests.components.jobs.scripted import Scene, ScriptedJobs, done, killed, raised
from training.errors import EXIT_FAILED, EXIT_STOP, UserError
from training.events import CHECKPOINT_WRITE, LOCAL, Alert, Decided, Incident, RanksEnded, Span, read_events
from training.orders import Orders
from training.resolve import resolve
from training.run_folder import RunFolder
from training.skipped import skipped_steps


@pytest.fixture
def play(tmp_path):
    """Bring a run home whose attempts do what a script says; the run's folder has the events."""

    class Play:
        def __init__(self):
            self.folder = RunFolder(tmp_path, "run")
            self.folder.events.mkdir(parents=True)

        def __call__(self, *script, purpose="training", pipeline_job="", scene=None, **settings):
            folder = self.folder.seen_from(purpose)
            folder.job_path.mkdir(exist_ok=True)
            config = resolve(
                {
                    "model": {"name": "m"},
                    "data": {"train": "d.jsonl"},
                    "training": {"global_batch_size": 4},
                    "parallel": {"num_nodes": 2, "procs_per_node": 1},
                    "resilience": {"node_timeout_s": 0.3, **settings.pop("resilience", {})},
                }
            )
            self.scene = scene or Scene(folder, [*script], **settings)
            self.step = Step("train", str(folder.root), folder.run)
            work = Work(folder, config, lambda: (folder.path / "done").exists(), "trained")
            bring_home(self.step, work, TaskSettings(), pipeline_job, jobs=ScriptedJobs(self.scene))

        def events(self, kind):
            return [event for event in read_events(self.folder.events) if isinstance(event, kind)]

        def record(self, number):
            return read_record(self.folder, number)

        @property
        def incidents(self):
            return [(e.attempt, e.what, e.host) for e in self.events(Incident)]

        @property
        def actions(self):
            return [event.action for event in self.events(Decided)]

        @property
        def names(self):
            return [job.name for job in self.scene.made]

    return Play()


def test_a_killed_rank_is_restarted_in_place_by_an_order_at_once(play):
    times = []

    def act(launcher):
        times.append(time.monotonic())
        killed(step=7, saved=5)(launcher)

    play(act, lambda launcher: (times.append(time.monotonic()), done(launcher)))
    assert play.names == ["run-1"] and play.scene.ran == [(1, "run-1", "a", "b"), (2, "run-1", "a", "b")]
    assert times[1] - times[0] < 1.0
    assert play.incidents == [(1, "signal", "a")] and play.actions == ["restart_in_place"]
    (incident,) = play.events(Incident)
    assert (incident.step, incident.rank, incident.exit_code, incident.fingerprint) == (7, 0, 137, "signal 9")
    second = play.record(2)
    assert second["in_place"] and second["name"] == "run-1" and second["outcome"] == "succeeded"
    assert (second["saved_from"], play.record(1)["decision"]) == (5, "restart_in_place")
    page = (play.folder.attempt(1) / "report.md").read_text()
    assert "Next, in the same place: it goes on from the checkpoint of step 5" in page and "on `a`" in page


def test_what_nodes_have_on_their_own_disks_counts_in_place_alone(play):
    def saves_locally(step, then):
        def act(launcher):
            launcher.write("rank-0", Span(name=CHECKPOINT_WRITE, phase="end", seconds=1, detail=LOCAL, step=step))
            then(launcher)

        return act

    def lose_node(launcher):
        launcher.begin()
        launcher.state["dead"].add(0)

    play(
        *(saves_locally(step, killed(node=step % 2)) for step in (5, 6, 7)),
        saves_locally(8, lose_node),
        done,
        resilience={"max_attempts": 2},
    )
    assert play.actions == ["restart_in_place"] * 3 + ["restart_elsewhere"]
    reasons = [event.reason for event in play.events(Decided)]
    assert reasons[:3] == [f"it goes on from the checkpoint of step {step}" for step in (5, 6, 7)]
    records = [play.record(number) for number in (1, 2, 3, 4, 5)]
    assert [record["saved_from"] for record in records] == [0, 5, 6, 7, 0]
    assert [record["past"]["saved"] for record in records[:4]] == [5, 6, 7, 0]


def test_a_machine_in_doubt_is_taken_back_also_by_a_launcher_that_did_not_exclude_it(play):
    folder = play.folder.seen_from("training")
    exclude(folder, {"a": "to blame twice"}, 1000, may_be_lifted=True)
    play(done, hosts=["a", "b"], resilience={"replacement_timeout_s": 1})
    assert play.scene.ran == [(2, "run-2", "a", "b")] and excluded(folder) == ()
    (decided,) = play.events(Decided)
    assert decided.action == "restart_elsewhere" and "a is used again" in decided.reason


def test_a_machine_that_did_not_pass_its_checks_is_not_taken_back(play):
    folder = play.folder.seen_from("training")
    exclude(folder, {"a": "ECC"}, 1000)
    with pytest.raises(StepFailed):
        play(hosts=["a", "b"], resilience={"replacement_timeout_s": 1, "start_timeout_s": 2})
    assert excluded(folder) == ("a",)


def test_a_lost_attempt_that_saved_is_progress(play):
    folder = play.folder.seen_from("training")
    lost = Past(1, "lost", saved_from=0, saved=40).as_record()
    for number, past in ((1, lost), (2, None)):
        record = {"number": number, "pipeline_job": "job", "outcome": "lost"}
        write_record(folder, {**record, "past": past} if past else record)
    found = history_of(folder, "job", 3)
    assert [past.progressed for past in found] == [True, False] and without_progress(found) == 1


def test_alerts_are_as_old_as_they_are_for_a_launcher_that_reads_them_later(play):
    def act(launcher):
        launcher.begin()
        for ago in (2000, 1000):
            launcher.alert("slow_link", "b", time=time.time() - ago)
        launcher.later(0.5, launcher.finish)

    play(act)
    assert play.actions == [] and play.names == ["run-1"]


def test_a_disk_is_given_time_before_the_next_attempt(play, monkeypatch):
    monkeypatch.setattr(policy, "_PAUSES_S", (0.7, 45.0))
    times = []

    def begin(then):
        return lambda launcher: (times.append(time.monotonic()), then(launcher))

    play(begin(raised("OSError: [Errno 5] Input/output error", what="storage")), begin(done))
    assert play.incidents == [(1, "storage", "b")] and play.actions == ["restart_in_place"]
    assert times[1] - times[0] > 0.7


def test_a_cause_of_its_own_is_not_waited_for_longer_than_a_second(play):
    began = time.monotonic()
    play(killed(silent=True), done)
    assert 1.0 < time.monotonic() - began < 2.5 and play.incidents == [(1, "signal", "a")]


def test_ranks_that_lost_a_peer_wait_for_word_of_it_and_its_node_is_replaced(play):
    def act(launcher):
        launcher.begin()
        launcher.error(
            "rank-0", rank=0, exit_code=1, message="RuntimeError: Connection closed by peer", traceback=""
        )
        launcher.end_ranks(0)
        launcher.state["dead"].add(1)

    play(act, done, hosts=["a", "b", "spare"])
    assert play.incidents == [(1, "node_lost", "b")] and play.actions == ["restart_elsewhere"]
    assert play.scene.ran[1] == (2, "run-2", "a", "spare")
    assert play.scene.stopped == ["run-1"] and excluded(play.folder) == ("b",)
    assert play.scene.had_to_leave == [True], "ranks without their peer cannot save"
    assert play.events(Decided)[0].excluded == ("b",)
    assert "b" in (play.folder.attempt(1) / "report.md").read_text()


def test_a_node_that_falls_silent_is_lost_although_no_rank_has_ended(play):
    def act(launcher):
        launcher.begin()
        launcher.state["dead"].add(0)

    play(act, done)
    assert play.incidents == [(1, "node_lost", "a")]


def test_nodes_whose_ranks_have_saved_and_left_are_not_lost_while_their_job_ends(play):
    def act(launcher):
        launcher.begin()
        launcher.end_ranks(0, "preempted", exit_code=143)
        launcher.end_ranks(1, exit_code=143)
        launcher.state["dead"] = {0, 1}
        launcher.later(0.6, lambda: launcher.end_job(what="preempted", exit_code=143, host="a"))

    play(act, done)
    assert play.incidents == [(1, "preempted", "a")] and excluded(play.folder) == ()


def test_without_a_spare_the_run_goes_on_smaller_and_grows_again_at_the_next_restart(play):
    def lose(launcher):
        launcher.begin()
        launcher.save(3)
        launcher.state["dead"].add(1)

    def mend(launcher):
        play.scene.hosts.append("c")
        killed(saved=6)(launcher)
        launcher.end_job(exit_code=137)

    play(lose, mend, done, hosts=["a", "b"], resilience={"min_nodes": 1, "replacement_timeout_s": 1})
    assert [(ran[0], *ran[2:]) for ran in play.scene.ran] == [(1, "a", "b"), (3, "a"), (4, "a", "c")]
    assert play.actions == ["restart_elsewhere", "shrink", "restart_elsewhere"]
    assert [event.num_nodes for event in play.events(Decided)] == [2, 1, 2]
    assert play.record(2)["outcome"] == "no_replacement" and play.record(3)["num_nodes"] == 1
    assert len(play.incidents) == 2, "the wait for a machine is no incident"


def test_a_machine_that_is_only_in_doubt_is_used_again_where_there_is_no_other(play):
    play(
        killed(saved=2),
        killed(saved=4),
        killed(saved=6),
        done,
        hosts=["a", "b"],
        resilience={"replacement_timeout_s": 1},
    )
    assert play.actions == ["restart_in_place", "restart_elsewhere", "restart_elsewhere", "restart_in_place"]
    reasons = [event.reason for event in play.events(Decided)]
    assert "a is replaced: to blame for two incidents running" in reasons[1]
    assert reasons[2].endswith("a is used again") and "there was no replacement" in reasons[3]
    assert excluded(play.folder) == ()


def test_a_machine_that_failed_its_checks_is_excluded_before_it_ran_a_step(play):
    def act(launcher):
        launcher.end_ranks(1, "node_suspect", exit_code=201, evidence="NVLink 3 is inactive\nmore")

    play(act, done)
    assert play.incidents == [(1, "node_suspect", "b")] and play.scene.ran[1][2:] == ("a", "c")
    assert "b is replaced: NVLink 3 is inactive" in play.events(Decided)[0].reason


def test_a_fatal_alert_ends_the_attempt_and_one_that_is_not_does_not(play):
    def act(launcher):
        launcher.begin()
        launcher.alert("xid", "a")
        launcher.alert("xid", "b", is_fatal=True)

    play(act, done)
    assert play.incidents == [(1, "node_suspect", "b")] and excluded(play.folder) == ("b",)
    assert play.scene.had_to_leave == [False], "its ranks may save"


def test_alerts_about_more_than_half_of_the_machines_end_nothing(play, capsys):
    def act(launcher):
        launcher.begin()
        launcher.alert("xid", "a", is_fatal=True)
        launcher.alert("xid", "b", is_fatal=True)
        launcher.later(1.4, launcher.finish)

    play(act)
    assert play.incidents == [] and excluded(play.folder) == ()
    assert "a, b stays in use" in capsys.readouterr().out


def test_nodes_of_a_job_that_its_queue_takes_back_are_not_lost(play):
    def act(launcher):
        def take_back():
            launcher.state["phase"], launcher.state["dead"] = Phase.QUEUED, {0, 1}
            launcher.later(0.5, admit)

        def admit():
            launcher.state["phase"] = Phase.RUNNING
            launcher.later(0.5, launcher.finish)

        launcher.begin()
        launcher.end_ranks(0, "preempted", exit_code=143)
        launcher.later(0.1, take_back)

    play(act)
    assert play.incidents == [] and set(play.record(1)["phases"]) == {"running", "queued", "succeeded"}


def test_alerts_and_words_of_another_job_of_the_run_are_not_this_one_s(play):
    def act(launcher):
        launcher.begin()
        launcher.write("evaluation-node-0", Alert(what="xid", host="a", text="XID 79", is_fatal=True))
        launcher.write("evaluation-node-0", RanksEnded(node=0, host="a", what="oom"))
        launcher.later(1.3, launcher.finish)

    play(act)
    assert play.incidents == []


def test_a_link_that_is_slow_twice_is_acted_on_and_one_that_is_slow_once_is_not(play):
    def act(launcher):
        launcher.begin()
        for _ in range(2):
            launcher.alert("slow_link", "b", node=1)
        launcher.alert("slow_link", "a", source=1, node=0)

    play(act, done)
    assert play.incidents == [(1, "network", "b")] and excluded(play.folder) == ("b",)


def test_what_hyperpod_says_of_a_machine_replaces_it(play):
    play(killed(), done, unfit={"b": "HyperPod says it is UnschedulablePendingReboot"})
    assert play.incidents == [(1, "signal", "a")] and excluded(play.folder) == ("b",)
    assert "UnschedulablePendingReboot" in play.events(Decided)[0].reason


def test_a_hang_is_blamed_on_the_rank_that_is_behind(play):
    def act(launcher):
        launcher.begin()
        words = "rank 1 was silent for 9 s (in 'forward' of step 4), and resilience.hang_timeout_s is 9"
        launcher.end_ranks(0, "hang", exit_code=-9, beat=40, evidence=words.replace("rank 1", "rank 0"))
        launcher.end_ranks(1, "hang", exit_code=-9, beat=39, evidence=words)

    play(act, done)
    (incident,) = play.events(Incident)
    assert (incident.what, incident.rank, incident.host) == ("hang", 1, "b")
    assert incident.fingerprint == "hang:forward" and play.actions == ["restart_in_place"]


def test_the_same_error_twice_without_progress_ends_the_step_with_its_own_code(play):
    with pytest.raises(StepFailed, match="the same failure as in attempt 1") as caught:
        play(raised(), raised(), pipeline_job="job")
    assert caught.value.exit_code == EXIT_STOP and play.scene.stopped == ["run-1"]
    assert play.actions == ["restart_in_place", "stop"]
    with pytest.raises(StepFailed) as again:
        play(pipeline_job="job")
    assert again.value.exit_code == EXIT_STOP and play.names == [], "its verdict is kept"


def test_an_exception_at_step_0_stops_within_two_attempts(play):
    with pytest.raises(StepFailed) as caught:
        play(raised("TypeError: unsupported operand"))
    assert caught.value.exit_code == EXIT_STOP and len(play.incidents) == 1


def test_attempts_without_progress_end_the_run_and_its_machines_are_left(play):
    with pytest.raises(StepFailed, match=r"resilience\.max_attempts is 3") as caught:
        play(killed(node=0), killed(node=1), killed(node=0))
    assert caught.value.exit_code == EXIT_FAILED and play.scene.stopped == ["run-1"]
    assert play.record(3)["decision"] == "stop"


def test_a_loss_that_is_not_finite_is_rolled_back_and_its_step_is_then_left_out(play):
    poison = raised("NonFinite: the loss of step 7 is nan", what="nonfinite", step=7)
    play(poison, poison, done, resilience={"nonfinite": "skip"})
    assert skipped_steps(play.folder) == {7}
    assert [e.fingerprint for e in play.events(Incident)] == ["nonfinite:step-7"] * 2
    assert play.actions == ["restart_in_place"] * 2 and play.record(2)["past"]["skipped"]


def test_preemptions_are_free(play):
    def preempted(launcher):
        launcher.begin()
        launcher.end_job(what="preempted", exit_code=143, host="a")

    play(*[preempted] * 5, done)
    assert [what for _, what, _ in play.incidents] == ["preempted"] * 5 and len(play.names) == 6


def test_a_mistake_is_told_in_the_rank_s_words(play):
    def act(launcher):
        launcher.begin()
        launcher.error("rank-0", rank=0, exit_code=64, message="set training.seed", traceback="")
        launcher.end_ranks(0, exit_code=64)

    with pytest.raises(UserError, match=r"^set training\.seed$"):
        play(act)


def test_an_evaluation_is_supervised_likewise_and_its_incidents_are_not_the_run_s(play):
    play(killed(), done, purpose="evaluation")
    assert play.names == ["run-e1"] and play.scene.ran == [(1, "run-e1", "a", "b"), (2, "run-e1", "a", "b")]
    assert play.incidents == [] and play.actions == []


# A launcher that starts again


class Killed(BaseException):
    pass


def kill_at(monkeypatch, name, times=1):
    """Let the launcher die without a word when it calls something of the recovery for the n-th time."""
    from components.jobs import recovery

    original, calls = getattr(recovery, name), []

    def die(*arguments, **options):
        calls.append(name)
        if len(calls) == times:
            raise Killed
        return original(*arguments, **options)

    monkeypatch.setattr(recovery, name, die)
    monkeypatch.setattr(recovery.Recovery, "_abandon", lambda self: None)
    return lambda: monkeypatch.undo()


def test_a_launcher_that_died_before_it_decided_decides_when_it_starts_again(play, monkeypatch):
    back = kill_at(monkeypatch, "decide")
    with pytest.raises(Killed):
        play(killed(), pipeline_job="job")
    assert "decision" not in play.record(1) and play.incidents == []
    back()
    play(done, pipeline_job="job")
    assert play.incidents == [(1, "signal", "a")] and play.record(1)["decision"] == "restart_elsewhere"
    assert play.names == ["run-2"]


def test_a_launcher_that_died_after_its_order_goes_on_with_the_same_job(play, monkeypatch):
    back = kill_at(monkeypatch, "follow", 2)
    with pytest.raises(Killed):
        play(killed(), pipeline_job="job")
    assert play.record(2)["in_place"] and "ended" not in play.record(2)
    before = play.scene
    back()

    before.script.append(done)
    play(pipeline_job="job", scene=before)
    assert [job.name for job in before.made] == ["run-1"], "no second launch"
    assert before.ran == [(1, "run-1", "a", "b"), (2, "run-1", "a", "b")]
    assert play.record(2)["outcome"] == "succeeded" and len(play.incidents) == 1


def test_nodes_that_left_before_the_order_are_no_incident(play):
    def leave(launcher):
        launcher.end_job(exit_code=137)

    play(killed(), leave, done)
    assert play.record(2)["outcome"] == "not_begun" and play.names == ["run-1", "run-3"]
    assert len(play.incidents) == 1


def test_failures_of_earlier_starts_count_by_their_pipeline_job(play):
    for number in (1, 2):
        past = {"number": number, "what": "signal", "fingerprint": "signal 9", "host": "c"}
        record = {"number": number, "launcher": "scripted", "name": f"run-{number}", "num_nodes": 2, "ended": 1.0}
        write_record(play.folder, {**record, "outcome": "signal", "pipeline_job": "job", "past": past})
    with pytest.raises(StepFailed, match=r"3 attempt\(s\) in a row saved nothing"):
        play(killed(), pipeline_job="job")
    play(killed(), done, pipeline_job="another")


PASTS = [{"ended": 1, "past": past} for past in (3, {}, {"what": 5, "saved": "x", "host": None, "more": 1})]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"past": 3}', *PASTS])
def test_a_record_that_is_damaged_holds_nothing_up(play, content):
    play.folder.attempt(1).mkdir(parents=True)
    text = content if isinstance(content, str) else json.dumps({"number": 1, "pipeline_job": "job", **content})
    (play.folder.attempt(1) / "attempt.json").write_text(text)
    play(done, pipeline_job="job")
    assert play.names == ["run-2"] and Orders(play.folder.job_path).attempt() == 2
    assert json.loads((play.folder.attempt(2) / "attempt.json").read_text())["phases"]
