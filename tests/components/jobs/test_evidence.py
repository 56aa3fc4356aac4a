"""From a recorded end of a job to its cause."""

import json
from pathlib import Path

import pytest

from components.cluster.job_state import PodEnd, pod_end, true_conditions, why_waiting
from components.cluster.kinds import PYTORCHJOB
from components.jobs.evidence import describe_ending, event_lines
from components.jobs.incident import judge
from components.jobs.launchers import Ending
from training.run_folder import RunFolder

RECORDINGS = Path(__file__).parents[2] / "doubles/recordings"


class Recorded:
    """A job's pods and events, put together from the rows of a recorded timeline."""

    def __init__(self, name, until=None):
        self.pods, self.events, self.conditions = {}, [], {}
        for row in json.loads((RECORDINGS / f"{name}.json").read_text())["timeline"]:
            if until is not None and row["t"] > until:
                break
            if "EVENT" in row:
                self._add_event(row)
            for verb in ("ADDED", "MODIFIED"):
                kind, _, item = row.get(verb, "").partition("/")
                if kind == "Pod":
                    self._update_pod(item, row)
                elif kind == "PyTorchJob":
                    self.conditions |= row.get("conditions", {})

    def _add_event(self, row):
        kind, reason = row["EVENT"].split(" ", 1)
        about = {"name": row["on"].partition("/")[2]}
        event = {"type": kind, "reason": reason, "involvedObject": about, "message": row["message"]}
        self.events.append({**event, **({"count": row["count"]} if "count" in row else {})})

    def _update_pod(self, name, row):
        labels = {PYTORCHJOB.node_label: name.rpartition("-")[2]}
        pod = self.pods.setdefault(
            name, {"metadata": {"name": name, "labels": labels}, "spec": {"nodeName": "node0"}, "status": {}}
        )
        status = pod["status"]
        status |= {key: row[key] for key in ("phase",) if key in row}
        status |= {key: row[f"status.{key}"] for key in ("reason", "message") if f"status.{key}" in row}
        if "container" in row:
            status["containerStatuses"] = [{"name": "pytorch", **row["container"]}]
        if "PodScheduled" in row.get("conditions", {}):
            state, _, words = row["conditions"]["PodScheduled"].partition(" ")
            reason, _, message = words.partition(": ")
            condition = {"type": "PodScheduled", "status": state, "reason": reason, "message": message}
            status["conditions"] = [condition]

    def said(self):
        conditions = [{"type": kind, **each} for kind, each in self.conditions.items()]
        failed = true_conditions({"status": {"conditions": conditions}}).get("Failed", {})
        return [failed.get("message", "")]

    def ending(self, **options):
        ends = [end for pod in self.pods.values() if (end := pod_end(PYTORCHJOB, pod))]
        return describe_ending(ends, self.said(), self.events, **options)


def end(
    pod="job-worker-0", exit_code=1, reason="Error", message="", finished="2026-11-30T10:00:00Z", host="node0"
):
    return PodEnd(pod, int(pod.rpartition("-")[2]), host, exit_code, reason, message, finished)


# Recorded ends


def test_a_pod_over_its_memory_is_the_cause_and_not_the_one_that_was_stopped_after_it():
    ending = Recorded("failures/never-oom-pid1").ending()
    assert (ending.what, ending.exit_code, ending.node) == ("oom", 137, "JOB-worker-1")
    first, second, *_ = ending.evidence.splitlines()
    assert first == "JOB-worker-1 on node0: exit code 137, OOMKilled"
    assert second == "JOB-worker-0 on node0: exit code 143"
    assert "PyTorchJob JOB is failed because 1 Worker replica(s) failed." in ending.evidence


def test_an_evicted_pod_is_the_cause_although_all_end_with_143():
    ending = Recorded("failures/evicted").ending()
    assert (ending.what, ending.node) == ("evicted", "JOB-worker-1")
    assert 'Evicted: Usage of EmptyDir volume "s" exceeds the limit "1Mi"' in ending.evidence


def test_a_command_that_is_not_there_is_told_once_for_each_pod():
    ending = Recorded("failures/bad-command").ending()
    assert (ending.what, ending.exit_code) == (None, 128)
    lines = [line for line in ending.evidence.splitlines() if "exit code 128, StartError: " in line]
    assert [line.split(" ")[0] for line in lines] == ["JOB-worker-0", "JOB-worker-1"]
    assert '"/no/such/program"' in lines[0]


def test_a_pod_that_fails_is_told_with_the_jobs_own_sentence():
    ending = Recorded("failures/never-exit1-clean-running").ending()
    assert (ending.what, ending.exit_code, ending.node) == (None, 1, "JOB-worker-1")
    assert ending.evidence.startswith("JOB-worker-1 on node0: exit code 1\n")


@pytest.mark.parametrize("gone, what", [(False, "preempted"), (True, "interrupted")])
def test_a_pod_that_was_told_to_stop_was_preempted_unless_the_job_was_deleted(gone, what):
    ending = Recorded("failures/never-pod-deleted").ending(gone=gone)
    assert (ending.what, ending.exit_code) == (what, 143)


def test_a_quota_leaves_no_pod_but_its_sentence_in_the_events():
    recorded = Recorded("does-not-start/quota")
    assert not recorded.pods
    assert recorded.ending().what is None
    first, second = event_lines(recorded.events)
    assert first.startswith("FailedCreatePod JOB: Error creating: pods ")
    assert "exceeded quota: gpus, requested: requests.nvidia.com/gpu=16" in first
    assert second == f"{first} (2 times)"


def test_an_image_that_cannot_be_pulled_is_told_while_it_waits_and_in_the_events():
    recorded = Recorded("does-not-start/image-pull")
    waiting = why_waiting(recorded.pods["JOB-worker-0"])
    assert waiting.startswith("JOB-worker-0: ImagePullBackOff: Back-off pulling image")
    assert "registry.invalid/team/missing:1" in waiting
    assert any(
        line.startswith("Failed JOB-worker-0: Failed to pull image") for line in event_lines(recorded.events)
    )


def test_while_an_image_is_pulled_there_is_nothing_to_say():
    recorded = Recorded("does-not-start/image-pull", until=1)
    assert why_waiting(recorded.pods["JOB-worker-0"]) is None
    assert event_lines(recorded.events) == []


@pytest.mark.parametrize(
    "name, words",
    [("unschedulable-gpu", "Insufficient nvidia.com/gpu"), ("affinity-not-in", "affinity/selector")],
)
def test_a_pod_that_fits_nowhere_is_told_in_the_schedulers_words(name, words):
    recorded = Recorded(f"does-not-start/{name}")
    assert words in why_waiting(recorded.pods["JOB-worker-0"])


# Which end is the cause


def test_of_two_that_fail_the_first_is_the_cause():
    first, later = end("job-worker-1", 3, finished="2026-11-30T10:55:31Z"), end(finished="2026-11-30T10:55:32Z")
    ending = describe_ending([later, first], [], [])
    assert (ending.node, ending.exit_code) == ("job-worker-1", 3)


def test_of_two_that_fail_in_the_same_second_the_lower_node_is_named():
    ending = describe_ending([end("job-worker-10"), end("job-worker-2")], [], [])
    assert ending.node == "job-worker-2"


def test_one_that_was_told_to_stop_is_not_the_cause_even_if_it_left_first():
    stopped = end("job-worker-0", 143, finished="2026-11-30T10:00:00Z")
    failed = end("job-worker-1", 1, finished="2026-11-30T10:00:09Z")
    assert describe_ending([stopped, failed], [], []).node == "job-worker-1"


def test_an_eviction_in_the_same_second_as_what_followed_is_the_cause():
    evicted = end("job-worker-1", 143, reason="Evicted", message="low on memory")
    ending = describe_ending([end("job-worker-0", 143), evicted], [], [])
    assert (ending.what, ending.node) == ("evicted", "job-worker-1")


def test_a_pod_that_ended_without_an_exit_code_was_taken_away():
    ending = describe_ending([end(exit_code=None, reason="NodeLost", host="")], [], [])
    assert ending.what == "evicted"
    assert ending.evidence == "job-worker-0 on no machine: ended without an exit code, NodeLost"


def test_pods_that_ended_well_are_no_evidence():
    assert describe_ending([end(exit_code=0, reason="Completed")], ["", "said"], []) == Ending(evidence="said")


def test_a_job_that_is_gone_without_a_trace_was_interrupted():
    assert describe_ending([], [], [], gone=True) == Ending(what="interrupted", evidence="the job is gone")


def test_only_the_newest_warnings_are_told_and_each_once():
    about = {"involvedObject": {"name": "p"}}
    warnings = [{"type": "Warning", "reason": "R", "message": str(i // 2), **about} for i in range(40)]
    normal = [{"type": "Normal", "reason": "Pulled", "message": "x", **about}]
    assert event_lines(warnings + normal) == [f"R p: {i}" for i in range(14, 20)]


# With what the ranks left behind


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path, "a-run")
    (folder.attempt(1) / "errors").mkdir(parents=True)
    (folder.attempt(1) / "logs").mkdir()
    return folder


def leave(folder, name, **error):
    (folder.attempt(1) / "errors" / f"{name}.json").write_text(json.dumps(error))


def words(rank, exit_code, message, at, traceback=""):
    return {"rank": rank, "exit_code": exit_code, "message": message, "traceback": traceback, "time": at}


def test_what_the_cluster_saw_wins_over_the_words_of_the_ranks_that_were_left(folder):
    leave(folder, "rank-0", **words(0, 1, "connection closed by peer", 1.0))
    ending = Recorded("failures/never-oom-pid1").ending()
    incident, _ = judge(folder, 1, ending)
    assert (incident.what, incident.exit_code, incident.rank) == ("oom", 137, None)
    assert incident.node == "JOB-worker-1"
    assert "connection closed" not in incident.evidence


def test_a_rank_that_was_killed_is_the_cause_and_its_log_the_evidence(folder):
    leave(folder, "node-1", rank=3, exit_code=-9, time=2.0)
    leave(folder, "rank-0", **words(0, 1, "connection closed by peer", 1.0))
    (folder.attempt(1) / "logs" / "rank-3.err").write_text("last words\n")
    incident, _ = judge(folder, 1, Ending(exit_code=137, node="w-1", evidence="w-1 on node0: exit code 137"))
    assert (incident.what, incident.rank, incident.exit_code) == ("signal", 3, 137)
    assert incident.evidence == "killed by signal 9\nlast words\nw-1 on node0: exit code 137"


def test_of_several_ranks_the_first_to_fail_is_heard(folder):
    leave(folder, "rank-0", **words(0, 1, "peer is gone", 5.0, "Traceback 0"))
    leave(folder, "rank-1", **words(1, 1, "boom", 4.0, "Traceback 1"))
    incident, _ = judge(folder, 1, Ending(exit_code=1, evidence="w: exit code 1"))
    assert (incident.what, incident.rank) == ("exception", 1)
    assert incident.evidence == "Traceback 1\nw: exit code 1"


def test_a_mistake_of_the_user_is_told_in_its_own_words_alone(folder):
    leave(folder, "rank-0", **words(0, 64, "set training.seed", 1.0, "Traceback"))
    incident, _ = judge(folder, 1, Ending(exit_code=64, evidence="w: exit code 64", log="noise"))
    assert (incident.what, incident.evidence) == ("invalid", "set training.seed")


@pytest.mark.parametrize("code, what", [(1, "exception"), (143, "interrupted"), (None, "exception")])
def test_without_words_of_the_ranks_the_nodes_log_and_the_evidence_speak(folder, code, what):
    incident, _ = judge(folder, 1, Ending(exit_code=code, node="w", evidence="seen", log="logged"))
    assert (incident.what, incident.exit_code, incident.node) == (what, code, "w")
    assert incident.evidence == "logged\nseen"


def test_a_half_written_error_is_passed_over(folder):
    (folder.attempt(1) / "errors" / "rank-0.json").write_text('{"rank": 0, "mess')
    assert judge(folder, 1, Ending(exit_code=1, log="logged"))[0].evidence == "logged"
