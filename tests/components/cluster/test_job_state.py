"""What has become of a job, from what the API server shows of it."""

import json
from pathlib import Path

import pytest

from components.cluster.job_state import Phase, node_rank, phase_of, pod_end, runs_or_ran, why_waiting
from components.cluster.kinds import PYTORCHJOB, TRAINJOB

RECORDINGS = Path(__file__).parents[2] / "doubles/recordings"


def job(*conditions, suspend=False, **metadata):
    """A job of which these conditions hold; with a minus before: do not hold any more."""
    told = [{"type": each.lstrip("-"), "status": "False" if each[0] == "-" else "True"} for each in conditions]
    return {"metadata": metadata, "spec": {"runPolicy": {"suspend": suspend}}, "status": {"conditions": told}}


def pods(*phases):
    return [{"metadata": {"name": f"pod{n}"}, "status": {"phase": phase}} for n, phase in enumerate(phases)]


@pytest.mark.parametrize(
    ("state", "phases", "expected"),
    [
        (None, [], Phase.GONE),
        (job(), [], Phase.STARTING),
        (job("Created"), ["Pending", "Pending"], Phase.STARTING),
        # The condition comes with the first pod.
        (job("Created", "Running"), ["Running", "Pending"], Phase.STARTING),
        (job("Created", "Running"), ["Running", "Running"], Phase.RUNNING),
        (job("Created", "Running"), ["Running", "Succeeded"], Phase.RUNNING),
        (job("Suspended"), [], Phase.QUEUED),
        (job("Created", suspend=True), [], Phase.QUEUED),
        (job("Created", "-Suspended", "Running"), ["Running", "Running"], Phase.RUNNING),
        (job("Created", "-Running", "Succeeded"), ["Succeeded"], Phase.SUCCEEDED),
        (job("Created", "-Running", "Failed"), [], Phase.FAILED),
        (job("Failed", deletionTimestamp="now"), [], Phase.FAILED),
        (job("Running", deletionTimestamp="now"), ["Running", "Running"], Phase.STOPPING),
    ],
)
def test_the_phase_of_a_job(state, phases, expected):
    assert phase_of(PYTORCHJOB, state, pods(*phases), 2) is expected


def test_a_trainjob_has_its_own_words():
    assert phase_of(TRAINJOB, job("Complete"), [], 2) is Phase.SUCCEEDED
    assert phase_of(PYTORCHJOB, job("Complete"), [], 2) is Phase.STARTING
    assert phase_of(TRAINJOB, {"metadata": {}, "spec": {"suspend": True}}, [], 2) is Phase.QUEUED


def test_a_recorded_job_and_its_pods():
    final = json.loads((RECORDINGS / "worker-only-elastic/job-final.json").read_text())
    assert phase_of(PYTORCHJOB, final, [], 2) is Phase.SUCCEEDED
    listed = json.loads((RECORDINGS / "worker-only-elastic/pods-while-running.json").read_text())
    pod = listed["first item in full"]
    assert node_rank(PYTORCHJOB, pod) == 0 and runs_or_ran(PYTORCHJOB, pod)
    assert pod_end(PYTORCHJOB, pod) is None and why_waiting(pod) is None


def pod(state, phase="Running", name="pytorch", **status):
    container = {"name": name, "state": state}
    labels = {PYTORCHJOB.node_label: "3"}
    metadata = {"name": "job-worker-3", "labels": labels}
    whole = {"phase": phase, "containerStatuses": [{"name": "sidecar", "state": {"running": {}}}, container]}
    return {"metadata": metadata, "spec": {"nodeName": "host"}, "status": {**whole, **status}}


def test_how_a_pod_ended():
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-30T10:00:00Z"}}
    # Before its phase says so.
    end = pod_end(PYTORCHJOB, pod(ended))
    assert (end.exit_code, end.reason, end.node_rank, end.host) == (137, "OOMKilled", 3, "host")
    evicted = pod(
        {"terminated": {"exitCode": 143, "reason": "Error"}}, "Failed", reason="Evicted", message="no disk"
    )
    assert (pod_end(PYTORCHJOB, evicted).reason, pod_end(PYTORCHJOB, evicted).message) == ("Evicted", "no disk")
    lost = {"metadata": {"name": "p"}, "status": {"phase": "Failed", "reason": "NodeLost"}}
    assert (pod_end(PYTORCHJOB, lost).exit_code, pod_end(PYTORCHJOB, lost).reason) == (None, "NodeLost")
    assert pod_end(PYTORCHJOB, pod({"running": {}})) is None
    assert pod_end(PYTORCHJOB, pod(ended, name="other")) is None, "a sidecar's end is not the pod's"


def test_a_pod_that_its_init_container_kept_from_starting_ended_with_that_ones_code():
    init = {"name": "health", "state": {"terminated": {"exitCode": 201, "reason": "Error", "finishedAt": "now"}}}
    waiting = {"waiting": {"reason": "PodInitializing"}}
    end = pod_end(PYTORCHJOB, pod(waiting, "Failed", initContainerStatuses=[init]))
    assert (end.exit_code, end.reason) == (201, "Error")
    assert pod_end(PYTORCHJOB, pod(waiting, "Pending", initContainerStatuses=[init])) is None
    passed = {"name": "health", "state": {"terminated": {"exitCode": 0}}}
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    assert pod_end(PYTORCHJOB, pod(ended, "Failed", initContainerStatuses=[passed])).exit_code == 1


@pytest.mark.parametrize(
    ("waiting", "said"),
    [
        (
            {"reason": "ImagePullBackOff", "message": "no such image"},
            "job-worker-3: ImagePullBackOff: no such image",
        ),
        ({"reason": "ErrImageNeverPull"}, "job-worker-3: ErrImageNeverPull"),
        ({"reason": "ContainerCreating"}, None),
        ({}, None),
    ],
)
def test_why_a_container_waits(waiting, said):
    assert why_waiting(pod({"waiting": waiting}, "Pending")) == said
    assert not runs_or_ran(PYTORCHJOB, pod({"waiting": waiting}, "Pending"))


def test_why_a_pod_has_no_machine():
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    waits = {"metadata": {"name": "p"}, "status": {"phase": "Pending", "conditions": [condition]}}
    assert why_waiting(waits) == "p: Unschedulable: 0/1 nodes"
    assert (
        why_waiting({"metadata": {"name": "p"}, "status": {"phase": "Running", "conditions": [condition]}}) is None
    )


def test_a_pod_that_its_machine_is_silent_about_has_started():
    assert phase_of(PYTORCHJOB, job("Running"), pods("Running", "Unknown"), 2) is Phase.RUNNING


def test_a_label_that_is_no_number_is_no_place():
    assert node_rank(PYTORCHJOB, {"metadata": {"labels": {PYTORCHJOB.node_label: "debug"}}}) == 0
