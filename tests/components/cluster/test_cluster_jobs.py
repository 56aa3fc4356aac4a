"""Requests about jobs: made once, found again, removed with their pods."""

import pytest

from components.cluster import jobs
from components.cluster.errors import ClusterRefused, ClusterUnavailable
from components.cluster.jobs import (
    adopt_job,
    annotate_job,
    create_job,
    delete_job,
    get_job,
    list_events,
    list_jobs,
    list_pods,
    owner_reference,
)
from components.cluster.kinds import PYTORCHJOB, TRAINJOB
from training.errors import UserError


def posts(fake):
    return [request for request in fake.requests if request.method == "POST"]


def is_running(fake, name="job"):
    return [pod["status"]["phase"] for pod in fake.pods(name)] == ["Running"]


def test_a_job_is_created_as_it_is_described(fake, cluster, manifest):
    created = create_job(cluster, PYTORCHJOB, manifest())
    assert created["metadata"]["uid"] == fake.job("job")["metadata"]["uid"]
    (post,) = posts(fake)
    assert post.query == {"fieldValidation": "Strict"} and post.body == manifest()


def test_a_field_that_the_operator_does_not_know_is_refused_and_not_dropped(fake, cluster, manifest):
    body = manifest()
    body["spec"]["bogusField"] = 1
    with pytest.raises(ClusterRefused, match=r'^cannot create the PyTorchJob .*unknown field "spec\.bogusField"'):
        create_job(cluster, PYTORCHJOB, body)
    assert fake.jobs() == [] and len(posts(fake)) == 1


def test_a_job_that_is_there_already_is_found(fake, cluster, manifest):
    first = create_job(cluster, PYTORCHJOB, manifest())
    again = create_job(cluster, PYTORCHJOB, manifest(labels={"shardline.dev/run": "other"}))
    assert again["metadata"]["uid"] == first["metadata"]["uid"]
    assert again["metadata"]["labels"] == {"shardline.dev/run": "run"}


@pytest.mark.parametrize("status", [0, 500, 504])
def test_a_create_whose_answer_is_lost_makes_one_job(fake, cluster, manifest, status):
    fake.fail(status, method="POST", path="pytorchjobs", after=True)
    created = create_job(cluster, PYTORCHJOB, manifest())
    assert len(posts(fake)) == 2
    (job,) = fake.jobs()
    assert created["metadata"]["uid"] == job["metadata"]["uid"]


def test_a_create_that_fails_before_it_acts_is_made_again(fake, cluster, manifest):
    fake.fail(0, times=2, method="POST", path="pytorchjobs")
    create_job(cluster, PYTORCHJOB, manifest())
    assert len(posts(fake)) == 3 and len(fake.jobs()) == 1


def test_a_job_that_goes_between_the_create_and_the_look_is_made_anew(fake, cluster, manifest):
    taken = {"kind": "Status", "message": "taken", "reason": "AlreadyExists", "code": 409}
    fake.fail(409, method="POST", body=taken)
    assert create_job(cluster, PYTORCHJOB, manifest())["metadata"]["uid"] == fake.job("job")["metadata"]["uid"]
    assert len(posts(fake)) == 2


def test_a_job_that_leaves_makes_way_for_a_new_one(fake, cluster, manifest, monkeypatch):
    monkeypatch.setattr(jobs, "_LOOK_S", 0.05)
    leaving = create_job(
        cluster, PYTORCHJOB, manifest(command="trap 'sleep 0.5; exit 143' TERM; sleep 60 & wait $!")
    )
    fake.wait(lambda: is_running(fake))
    delete_job(cluster, PYTORCHJOB, "job")
    created = create_job(cluster, PYTORCHJOB, manifest())
    assert created["metadata"]["uid"] != leaving["metadata"]["uid"]
    assert "deletionTimestamp" not in created["metadata"]


def test_a_job_that_never_leaves_is_told_as_it_is(fake, cluster, manifest, monkeypatch):
    monkeypatch.setattr(jobs, "_LOOK_S", 0.05)
    monkeypatch.setattr(jobs, "LEFT_S", 0.2)
    monkeypatch.setattr(jobs, "grace_s", lambda job: 0)
    create_job(cluster, PYTORCHJOB, manifest(finalizers=["example.org/keep"]))
    delete_job(cluster, PYTORCHJOB, "job")
    with pytest.raises(UserError, match=r"'job' .* was deleted, but it or its pods stay .*: remove them by force"):
        create_job(cluster, PYTORCHJOB, manifest())


def test_a_job_stays_until_its_pods_have_left(fake, cluster, manifest):
    create_job(cluster, PYTORCHJOB, manifest(command="trap 'sleep 0.5; exit 0' TERM; sleep 60 & wait $!"))
    fake.wait(lambda: is_running(fake))
    assert delete_job(cluster, PYTORCHJOB, "job") is True
    assert get_job(cluster, PYTORCHJOB, "job")["metadata"]["deletionTimestamp"]
    assert len(fake.pods("job")) == 1, "its pod still saves"
    fake.wait(lambda: get_job(cluster, PYTORCHJOB, "job") is None)
    assert fake.pods("job") == []
    assert delete_job(cluster, PYTORCHJOB, "job") is False


def test_a_delete_whose_answer_is_lost_is_made_again(fake, cluster, manifest):
    create_job(cluster, PYTORCHJOB, manifest())
    fake.fail(0, method="DELETE", after=True)
    delete_job(cluster, PYTORCHJOB, "job")
    fake.wait(lambda: fake.job("job") is None)


def test_jobs_are_listed_by_their_run(fake, cluster, manifest):
    for name, run in (("a", "one"), ("b", "one"), ("c", "two")):
        create_job(cluster, PYTORCHJOB, manifest(name, labels={"shardline.dev/run": run}))
    create_job(cluster, PYTORCHJOB, manifest("foreign", labels={}))
    assert [job["metadata"]["name"] for job in list_jobs(cluster, PYTORCHJOB)] == ["a", "b", "c"]
    assert [job["metadata"]["name"] for job in list_jobs(cluster, PYTORCHJOB, "one")] == ["a", "b"]


def test_a_kind_that_is_not_installed_has_no_jobs(fake, cluster):
    assert list_jobs(cluster, TRAINJOB) == []
    assert get_job(cluster, TRAINJOB, "job") is None
    fake.deny("list", "trainjobs")
    with pytest.raises(ClusterRefused, match="it is not permitted"):
        list_jobs(cluster, TRAINJOB)


def test_an_adopted_job_goes_with_its_owner(fake, cluster, manifest):
    create_job(cluster, PYTORCHJOB, manifest())
    fake.run_pod("launcher", lines=[])
    adopt_job(cluster, PYTORCHJOB, "job", owner_reference(cluster.core.read_namespaced_pod("launcher", "demo")))
    assert [owner["name"] for owner in fake.job("job")["metadata"]["ownerReferences"]] == ["launcher"]
    fake.delete_pod("launcher")
    fake.wait(lambda: fake.job("job") is None)


def test_annotating_is_tried_once(fake, cluster, manifest):
    create_job(cluster, PYTORCHJOB, manifest(annotations={"kept": "1"}))
    annotate_job(cluster, PYTORCHJOB, "job", {"shardline.dev/progress": "{}"})
    assert fake.job("job")["metadata"]["annotations"] == {"kept": "1", "shardline.dev/progress": "{}"}
    fake.fail(500, times=9, method="PATCH")
    with pytest.raises(ClusterUnavailable):
        annotate_job(cluster, PYTORCHJOB, "job", {"shardline.dev/progress": "{}"})
    assert sum(request.method == "PATCH" for request in fake.requests) == 2


def test_pods_of_a_job_come_with_the_version_of_their_list(fake, cluster, manifest):
    create_job(cluster, PYTORCHJOB, manifest())
    fake.run_pod("foreign")
    fake.wait(lambda: fake.pods("job"))
    pods, version = list_pods(cluster, PYTORCHJOB, "job")
    assert [pod["metadata"]["name"] for pod in pods] == ["job-worker-0"] and version.isdigit()


def test_events_are_read_page_by_page_oldest_first(fake, cluster, manifest, monkeypatch):
    monkeypatch.setattr(jobs, "_PAGE", 2)
    create_job(cluster, PYTORCHJOB, manifest(command="true"))
    create_job(cluster, PYTORCHJOB, manifest("other", command="true"))
    fake.wait(lambda: len(fake.events("job-worker-0")) >= 4)
    fake.server.requests.clear()
    events = list_events(cluster, {"job", "job-worker-0"})
    assert len([r for r in fake.requests if "/events" in r.path]) >= 4
    assert {event["involvedObject"]["name"] for event in events} == {"job", "job-worker-0"}
    assert {event["reason"] for event in events} >= {"SuccessfulCreatePod", "Scheduled", "Started"}
    times = [event.get("lastTimestamp") or event.get("eventTime") for event in events]
    assert times == sorted(times)


def test_events_that_may_not_be_read_are_no_evidence_and_no_error(fake, cluster, manifest):
    create_job(cluster, PYTORCHJOB, manifest())
    fake.deny("list", "events")
    assert list_events(cluster, {"job"}) == []


def test_events_whose_pages_grew_old_are_told_as_far_as_they_were_read(fake, cluster, manifest, monkeypatch):
    monkeypatch.setattr(jobs, "_PAGE", 2)
    create_job(cluster, PYTORCHJOB, manifest(command="true"))
    fake.wait(lambda: len(fake.events()) >= 4)
    fake.fail(410, path="continue=")
    assert len(list_events(cluster, {"job", "job-worker-0"})) == 2


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_may_pass_where_the_right_was_there_before(fake, cluster, manifest, status):
    create_job(cluster, PYTORCHJOB, manifest())
    fake.fail(status, times=3, path="pytorchjobs/job")
    assert get_job(cluster, PYTORCHJOB, "job", refused_s=5)["metadata"]["name"] == "job"
    fake.fail(status, path="pytorchjobs/job")
    with pytest.raises(ClusterRefused):
        get_job(cluster, PYTORCHJOB, "job")
    fake.deny("get", "pytorchjobs")
    with pytest.raises(ClusterRefused):
        get_job(cluster, PYTORCHJOB, "job", refused_s=0.3)


def test_only_the_job_that_is_meant_is_deleted(fake, cluster, manifest):
    uid = create_job(cluster, PYTORCHJOB, manifest())["metadata"]["uid"]
    assert not delete_job(cluster, PYTORCHJOB, "job", uid="another")
    assert "deletionTimestamp" not in fake.job("job")["metadata"]
    assert delete_job(cluster, PYTORCHJOB, "job", uid=uid)
    assert "deletionTimestamp" in fake.job("job")["metadata"], "it waits for its pods"


def test_a_list_whose_body_does_not_arrive_whole_is_asked_for_again(fake, cluster):
    fake.run_pod("pod", lines=[], labels={PYTORCHJOB.pod_label: "job"})
    fake.fail(200, times=2, path="/pods", body='{"items": [')
    pods, _ = list_pods(cluster, PYTORCHJOB, "job")
    assert [pod["metadata"]["name"] for pod in pods] == ["pod"]
    fake.fail(200, path="/events", body="<html>")
    assert list_events(cluster, {"nothing"}) == []
