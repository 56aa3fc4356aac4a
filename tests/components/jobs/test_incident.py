"""From what ranks, nodes and machines leave behind to the one cause."""

import json
import time
from types import SimpleNamespace

import pytest

from components.jobs.alerts import AlertWatch
from components.jobs.incident import judge
from components.jobs.launchers import Ending
from components.jobs.nodes import NodeWatch
from components.jobs.seen import Seen
from components.jobs.settle import is_settled
from training.events import Alert, RanksEnded
from training.guard.place import Place, write_place
from training.run_folder import RunFolder

PLACES = {0: Place(0, "a", "", 0, 0, (0, 1)), 1: Place(1, "b", "", 0, 0, (2, 3))}


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path, "a-run")
    (folder.attempt(1) / "errors").mkdir(parents=True)
    return folder


def leave(folder, name, **error):
    (folder.attempt(1) / "errors" / f"{name}.json").write_text(json.dumps({"time": 1.0, **error}))


def words(folder, rank, message, at=1.0, **more):
    trace = f'  File "/x/{more.pop("file", "a/b.py")}", line 1, in f\n{message}'
    leave(folder, f"rank-{rank}", rank=rank, exit_code=1, message=message, traceback=trace, time=at, **more)


def told(node=0, what=None, exit_code=1, **more):
    return RanksEnded(node=node, host="ab"[node], what=what, exit_code=exit_code, **{"rank": 2 * node, **more})


def judged(folder, *ended, ending=None, **seen):
    seen = Seen(told={each.node: each for each in ended}, places=PLACES, **seen)
    return judge(folder, 1, ending or Ending(), seen)


GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.0.0.2]:41"
NCCL = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:81, remote process exited"
SHARED = "RuntimeError: rank 3 of the group has died"


@pytest.mark.parametrize("of_peer", [GLOO, NCCL, SHARED, "torch.distributed.DistNetworkError: socket timeout"])
def test_the_words_of_a_cause_win_over_those_about_a_peer_whatever_the_clocks_say(folder, of_peer):
    words(folder, 0, of_peer, at=1.0)
    assert judged(folder, told(0))[0].what == "network"
    words(folder, 2, "ValueError: too bad", at=500.0)
    incident, suspects = judged(folder, told(0), told(1))
    assert (incident.what, incident.rank, incident.host) == ("exception", 2, "b") and not suspects
    assert incident.fingerprint == "ValueError@a/b.py:f too bad"


def test_a_signal_wins_over_words_and_an_abort_only_over_silence(folder):
    words(folder, 0, GLOO)
    leave(folder, "node-1", rank=2, exit_code=-6)
    assert judged(folder, told(1, exit_code=-6))[0].what == "network", "NCCL's watchdog aborts ranks"
    leave(folder, "node-1", rank=2, exit_code=-11)
    incident, _ = judged(folder, told(1, exit_code=-11))
    assert (incident.what, incident.exit_code, incident.host) == ("signal", 139, "b")
    assert incident.fingerprint == "signal 11"


def test_an_abort_without_words_is_a_signal(folder):
    leave(folder, "node-1", rank=2, exit_code=-6)
    assert judged(folder, told(1, exit_code=-6))[0].what == "signal"


@pytest.mark.parametrize("what, code", [("oom", -9), ("preempted", 143), ("node_suspect", 201), ("hang", -9)])
def test_what_a_node_knows_for_certain_is_not_left_to_the_ranks_words(folder, what, code):
    words(folder, 0, GLOO)
    leave(folder, "node-1", rank=2, exit_code=-9)
    incident, suspects = judged(folder, told(0), told(1, what, code, evidence="certain"))
    assert (incident.what, incident.host) == (what, "b") and "certain" in incident.evidence
    assert suspects == ({"b": "certain"} if what == "node_suspect" else {})


def test_a_machine_that_is_lost_is_the_cause_of_the_hang_of_the_others(folder):
    incident, suspects = judged(folder, told(0, "hang", -9), lost={1: PLACES[1]})
    assert (incident.what, incident.host, list(suspects)) == ("node_lost", "b", ["b"])


def test_several_machines_that_report_at_once_are_all_suspects(folder):
    incident, suspects = judged(folder, fatal={"b": "XID 79", "a": "XID 48"})
    assert incident.what == "node_suspect" and suspects == {"b": "XID 79", "a": "XID 48"}
    assert "a: XID 48" in incident.evidence


def test_of_several_nodes_that_hang_the_one_behind_is_named_and_a_stopped_rank_before_all(folder):
    assert judged(folder, told(0, "hang", beat=7), told(1, "hang", beat=6))[0].host == "b"
    assert judged(folder, told(0, "hang", beat=-1), told(1, "hang", beat=6))[0].host == "a"


def test_a_record_of_a_rank_may_tell_its_class_and_its_step(folder):
    words(folder, 0, "NonFinite: the loss of step 7 is nan", what="nonfinite", step=7)
    incident, _ = judged(folder, told(0), step=6)
    assert (incident.what, incident.step, incident.fingerprint) == ("nonfinite", 7, "nonfinite:step-7")
    words(folder, 0, "OSError: the disk hangs", what="storage")
    assert judged(folder, told(0), step=6)[0].what == "storage"


def test_a_node_of_several_that_was_killed_is_lost_and_the_only_one_is_a_signal(folder):
    words(folder, 0, GLOO)
    incident, suspects = judged(folder, told(0), ending=Ending(exit_code=137, host="b"))
    assert (incident.what, incident.host, list(suspects)) == ("node_lost", "b", ["b"])
    # One that told of its ranks' end, and left with their code, was not.
    assert judged(folder, told(1), ending=Ending(exit_code=137, host="b"))[0].what == "network"
    alone = Seen(places={0: PLACES[0]})
    (folder.attempt(1) / "errors" / "rank-0.json").unlink()
    incident, suspects = judge(folder, 1, Ending(exit_code=137, host="a"), alone)
    assert (incident.what, incident.exit_code, incident.host, suspects) == ("signal", 137, "a", {})


@pytest.mark.parametrize(
    "ending, suspect", [(Ending(exit_code=201, host="b"), ["b"]), (Ending(exit_code=201), [])]
)
def test_a_job_that_ends_with_the_code_of_a_bad_machine_says_so_by_that_alone(folder, ending, suspect):
    incident, suspects = judge(folder, 1, ending)
    assert list(suspects) == suspect and incident.what == ("node_suspect" if suspect else "exception")


@pytest.mark.parametrize("content", ["", "[]", "3", '{"rank": 0, "mess', '{"rank": "x", "message": 3}', "null"])
def test_whatever_is_half_written_is_survived(folder, content):
    (folder.attempt(1) / "errors" / "rank-0.json").write_text(content)
    (folder.attempt(1) / "errors" / "node-0.json").write_text(content)
    assert judged(folder, told(0))[0].what == "exception"


# When enough was heard


@pytest.mark.parametrize(
    "ended, waited, lives, settled",
    [
        ([], 99, True, False),
        ([told(0), told(1)], 0, False, True),
        ([told(0, exit_code=-9)], 0.5, True, False),
        ([told(0, exit_code=-9)], 1.1, False, True),
        ([told(0, "oom")], 1.1, False, True),
        ([told(0)], 1.1, True, True),
        ([told(0)], 1.1, False, False),
        ([told(0, exit_code=-6)], 50, False, False),
        ([told(0, "hang", -9, beat=4)], 5, False, False),
        ([told(0, "hang", -9, beat=-1)], 5, False, True),
        ([told(0, "hang", -9, beat=4)], 20, True, False),
        ([told(0, "hang", -9, beat=4)], 31, True, True),
        ([told(0, "hang", -9, beat=4), told(1, "hang", -9, beat=-1)], 5, True, True),
        ([told(0, "preempted", 143), told(1, "preempted", 143)], 5, True, False),
        ([told(0, exit_code=143)], 31, True, True),
    ],
)
def test_ranks_that_lost_a_peer_are_no_reason_to_judge_until_the_peer_s_node_is_heard(
    ended, waited, lives, settled
):
    assert is_settled({each.node: each for each in ended}, 2, waited, lambda node: lives) is settled


# Nodes that live


def beat(folder, node, content):
    path = folder.launcher_heartbeat.with_name(f"node-{node}")
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)


def test_a_node_counts_as_lost_only_once_it_had_begun_and_only_by_change(folder):
    beat(folder, 0, "1")
    beat(folder, 1, "half-writt")  # by an earlier job, whatever it says
    watch = NodeWatch(folder, 1, 3, {})
    assert watch.look() is False and watch.lost(0.05) == {}
    time.sleep(0.06)
    watch.look()
    assert watch.lost(0.05) == {}, "none has begun"
    for node in (0, 1):
        write_place(folder.attempt(1), PLACES[node])
    watch.look()
    assert watch.lost(0.05) == {} and set(watch.places) == {0, 1}
    for n in range(2, 20):
        beat(folder, 0, str(n))
        time.sleep(0.01)
        assert watch.look()
    time.sleep(0.01)
    assert not watch.look()
    assert watch.lost(0.12) == {1: PLACES[1]} and watch.lives(0, time.monotonic() - 0.1)
    assert not watch.lives(1, time.monotonic() - 0.05)


def test_a_node_that_had_begun_an_attempt_before_in_its_place_counts_at_once(folder):
    watch = NodeWatch(folder, 2, 2, PLACES)
    time.sleep(0.06)
    watch.look()
    assert set(watch.lost(0.05)) == {0, 1}


def test_a_store_that_stands_still_is_no_loss_of_nodes(folder, monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def look(own=False, node=False):
        nonlocal now
        now += 1.0
        if own:
            folder.launcher_heartbeat.write_text(str(now))
        if node:
            beat(folder, 0, str(now))
        watch.look()
        return bool(watch.lost(10.0))

    watch = NodeWatch(folder, 1, 1, {0: PLACES[0]})
    beat(folder, 0, "0")
    assert not any(look(own=True, node=True) for _ in range(5))
    assert not any(look() for _ in range(40)), "this launcher's own heartbeat is silent too"
    assert not look(own=True), "the node's comes a little later"
    assert [look(own=True) for _ in range(20)].index(True) == 8, "its time begins anew, and then counts"
    assert not look(own=True, node=True)
    now += 100.0
    assert not look(own=True), "nobody looked"


# Alerts


@pytest.fixture
def alerts():
    said = []
    watch = AlertWatch(lambda hosts: "it may not be excluded now" if "z" in hosts else "", said.append)
    return SimpleNamespace(watch=watch, said=said)


def alert(what="slow_link", host="b", source="node-0", node=1, **more):
    return Alert(what=what, host=host, source=source, node=node, text=f"{what} {host}", **more)


def test_a_slow_link_is_told_once_and_acted_on_only_if_it_is_so_twice_within_five_minutes(alerts):
    alerts.watch.take(alert(), 0.0)
    assert alerts.watch.slow(1.0) == {} and alerts.said == ["slow_link b"]
    alerts.watch.take(alert(), 301.0)
    assert alerts.watch.slow(302.0) == {}
    alerts.watch.take(alert(), 500.0)
    assert alerts.watch.slow(501.0) == {"b": "slow_link b"} and alerts.said == ["slow_link b"]


def test_two_ends_of_a_link_that_each_say_it_once_are_one_alert(alerts):
    alerts.watch.take(alert(host="b", source="node-0", node=1), 0.0)
    alerts.watch.take(alert(host="a", source="node-1", node=0), 0.1)
    assert alerts.watch.slow(1.0) == {}
    for at in (15.0, 30.0):
        alerts.watch.take(alert(host="b", source="node-0", node=1), at)
        alerts.watch.take(alert(host="a", source="node-1", node=0), at)
    assert list(alerts.watch.slow(31.0)) == ["b"], "node 0 is where the others meet"


def test_of_two_ends_it_does_not_matter_which_looks_more_often(alerts):
    alerts.watch.take(alert(host="a", source="node-1", node=0), 0.0)
    alerts.watch.take(alert(host="b", source="node-0", node=1), 1.0)
    alerts.watch.take(alert(host="a", source="node-1", node=0), 15.0)
    assert list(alerts.watch.slow(15.1)) == ["b"]


def test_the_machine_that_most_name_is_the_one(alerts):
    for at in (0.0, 15.0):
        for source, host, node in ((0, "b", 1), (2, "b", 1), (1, "c", 2)):
            alerts.watch.take(alert(host=host, source=f"node-{source}", node=node), at)
    assert list(alerts.watch.slow(16.0)) == ["b"]


def test_a_fatal_alert_waits_a_moment_for_others_and_needs_a_permission(alerts):
    alerts.watch.take(alert("xid", "a", is_fatal=True), 10.0)
    alerts.watch.take(alert("xid", "c", is_fatal=False), 10.0)
    assert alerts.watch.fatal(10.5) == {} and alerts.watch.fatal(11.1) == {"a": "xid a"}
    alerts.watch.take(alert("health", "z", is_fatal=True), 12.0)
    assert alerts.watch.fatal(13.0) == alerts.watch.fatal(14.0) == {}
    assert alerts.said[-1] == "a, z stays in use: it may not be excluded now" and len(alerts.said) == 4


@pytest.mark.parametrize("what", ["straggler", "storage", "preemption"])
def test_what_only_people_are_to_know_is_only_told(alerts, what):
    for at in range(5):
        alerts.watch.take(alert(what, "b", rank=3), float(at))
    assert alerts.watch.fatal(9.0) == alerts.watch.slow(9.0) == {} and len(alerts.said) == 1
