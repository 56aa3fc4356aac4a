"""What happens to a job beside its training, and what the launcher makes of it."""

import copy
import json
import threading
import time

import pytest

from components.cluster import jobs as requests
from components.cluster.client import connect
from components.cluster.errors import ClusterRefused, ClusterUnavailable
from components.cluster.job_state import Phase
from components.cluster.kinds import PYTORCHJOB
from components.jobs.attempts import write_record
from components.jobs.describe import TaskSettings
from components.jobs.jobs import jobs_of
from components.jobs.launchers import cluster as launcher_module
from components.jobs.launchers.cluster import own_pod
from components.step import Interrupted, StepFailed
from components.train.supervisor import supervise
from tests.components.train.test_cluster_launcher import SEAL, SLEEP, launch
from tests.components.train.test_supervisor import Step, attempt_record, eventually, incidents
from tests.doubles.cluster.resources import PYTORCHJOBS, TRAINJOBS
from training.errors import UserError

WAITS = f"trap 'exit 143' TERM; {SLEEP}"


def both_run(cluster, job="run-1"):
    pods = [pod for pod in cluster.pods(job) if "deletionTimestamp" not in pod["metadata"]]
    return [pod["status"]["phase"] for pod in pods] == ["Running", "Running"]


def meanwhile(action):
    threading.Thread(target=action, daemon=True).start()


@pytest.fixture
def started(pods_run):
    """Start an attempt's job as a launcher does that is killed right after; returns the run and its jobs."""

    def start(script, pipeline_job="", **settings):
        run = pods_run(script, **settings)
        jobs = jobs_of(run.folder, run.folder.config(), TaskSettings(), pipeline_job)
        job, launcher = jobs.describe(1), jobs.launcher()
        record = {"number": 1, "launcher": "pytorchjob", "name": job.name, "pipeline_job": pipeline_job}
        record |= {"num_nodes": job.num_nodes, "procs_per_node": job.procs_per_node, **jobs.where()}
        run.folder.attempt(1).mkdir(parents=True)
        (run.folder.attempt(1) / "attempt.json").write_text(json.dumps(record))
        launcher.submit(job)
        return run, launcher

    return start


def next_attempt(run, pipeline_job=""):
    return jobs_of(run.folder, run.folder.config(), TaskSettings(), pipeline_job).next_attempt()


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_that_passes_does_not_end_the_job(cluster, pods_run, status):
    run = pods_run(f"sleep 2.5; {SEAL}")

    def refuse():
        cluster.wait(lambda: both_run(cluster))
        cluster.fail(status, times=2, method="GET", path="pytorchjobs/run-1")

    meanwhile(refuse)
    supervise(Step(run.folder))
    assert attempt_record(run)["outcome"] == "succeeded"


def test_a_refusal_that_lasts_ends_the_step_and_leaves_the_job_to_be_found(cluster, pods_run, monkeypatch):
    monkeypatch.setattr(launcher_module, "REFUSED_S", 0.2)
    run = pods_run(WAITS)

    def refuse():
        cluster.wait(lambda: both_run(cluster))
        cluster.deny("get", "pytorchjobs")

    meanwhile(refuse)
    with pytest.raises(ClusterRefused, match="cannot read the PyTorchJob 'run-1'"):
        supervise(Step(run.folder))
    assert "ended" not in attempt_record(run)
    cluster.allow_all()
    assert next_attempt(run) == 1


def test_a_model_that_is_whole_is_the_end_however_its_job_ends(cluster, pods_run):
    run = pods_run(f"{SEAL}; exit 1")
    supervise(Step(run.folder))
    assert attempt_record(run)["outcome"] == "succeeded" and len(cluster.jobs()) == 1


def suspend(cluster, resource, value):
    def change(job):
        (job["spec"] if resource is TRAINJOBS else job["spec"]["runPolicy"])["suspend"] = value

    cluster.store.update(resource, "demo", "run-1", change)


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_a_job_that_its_queue_takes_back_goes_on_when_it_is_admitted_again(
    cluster, pods_run, kind, monkeypatch, capfd
):
    monkeypatch.setattr(launcher_module, "_OPERATOR_S", 1.5)
    if kind == "trainjob":
        cluster.install("trainer.kubeflow.org")
    resource = TRAINJOBS if kind == "trainjob" else PYTORCHJOBS
    run = pods_run(f'if [ -e "$3/again" ]; then echo second; sleep 3; {SEAL}; else {WAITS}; fi', launcher=kind)

    def preempt():
        cluster.wait(lambda: both_run(cluster))
        time.sleep(0.5)
        suspend(cluster, resource, True)
        cluster.wait(lambda: not cluster.pods("run-1"))
        time.sleep(2)
        (run.folder.path / "again").touch()
        suspend(cluster, resource, False)

    meanwhile(preempt)
    step = Step(run.folder)
    supervise(step)
    assert run.folder.attempts() == [1] and attempt_record(run)["outcome"] == "succeeded"
    assert "the job waits in its queue" in step.notes
    out = capfd.readouterr().out
    assert out.count("[node 0] second") == out.count("[node 1] second") == 1, "the new pods' logs are told"


def test_a_deleted_job_that_stays_is_not_waited_for_without_end(cluster, pods_run, monkeypatch):
    for module in (launcher_module, requests):
        monkeypatch.setattr(module, "LEFT_S", -29.0)
    run = pods_run(WAITS, grace_s=30)

    def delete():
        cluster.wait(lambda: both_run(cluster))
        cluster.store.update(
            PYTORCHJOBS, "demo", "run-1", lambda job: job["metadata"].update(finalizers=["example.org/keep"])
        )
        requests.delete_job(connect(), PYTORCHJOB, "run-1")

    meanwhile(delete)
    with pytest.raises(StepFailed, match="it was asked to stop"):
        supervise(Step(run.folder))


def test_a_job_that_somebody_makes_anew_under_the_name_is_another(cluster, pods_run):
    run = pods_run(WAITS)

    def replace():
        cluster.wait(lambda: both_run(cluster))
        manifest = copy.deepcopy(cluster.job("run-1"))
        pod = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        pod["containers"][0]["command"] = ["true"]
        manifest["metadata"] = {"name": "run-1", "namespace": "demo", "labels": {"owner": "somebody"}}
        requests.delete_job(connect(), PYTORCHJOB, "run-1")
        cluster.wait(lambda: cluster.job("run-1") is None)
        requests.create_job(connect(), PYTORCHJOB, manifest)

    meanwhile(replace)
    with pytest.raises(StepFailed, match="it was asked to stop"):
        supervise(Step(run.folder))
    assert incidents(run)[0].what == "interrupted"
    assert cluster.job("run-1")["metadata"]["labels"] == {"owner": "somebody"}


def test_a_create_that_was_not_waited_for_leaves_no_job(cluster, pods_run, monkeypatch):
    run = pods_run(WAITS)
    jobs = jobs_of(run.folder, run.folder.config(), TaskSettings())
    create, late = launcher_module.create_job, []

    def interrupted(*arguments):
        late.append(threading.Timer(0.7, create, arguments))
        late[0].start()
        raise Interrupted

    monkeypatch.setattr(launcher_module, "create_job", interrupted)
    launcher = jobs.launcher()
    with pytest.raises(Interrupted):
        launcher.submit(jobs.describe(1))
    launcher.stop()
    late[0].join()
    assert cluster.jobs() == []


def test_an_owner_that_cannot_be_set_now_is_set_later(cluster, started, monkeypatch):
    run, launcher = started(WAITS)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "step", "uid": "1"}
    monkeypatch.setattr(launcher_module, "_PROGRESS_S", 0.1)
    config = run.folder.config()
    jobs = jobs_of(run.folder, config, TaskSettings())
    jobs._owner = owner
    adopt = launcher_module.adopt_job

    def unavailable(*arguments):
        raise ClusterUnavailable("not now")

    monkeypatch.setattr(launcher_module, "adopt_job", unavailable)
    second = jobs.launcher()
    second.submit(jobs.describe(1))
    assert cluster.job("run-1")["metadata"].get("ownerReferences") is None
    monkeypatch.setattr(launcher_module, "adopt_job", adopt)
    cluster.wait(lambda: second.poll() and cluster.job("run-1")["metadata"].get("ownerReferences") == [owner])
    second.stop()
    launcher._close()


def test_a_step_that_cannot_read_its_own_pod_now_does_not_take_another_image(cluster, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "here")
    monkeypatch.setenv("KFP_POD_NAME", "step")
    connection = connect()
    assert own_pod(connection) is None, "it is not this cluster's"

    def unavailable(*arguments, **options):
        raise ClusterUnavailable("not now")

    monkeypatch.setattr(launcher_module, "patiently", unavailable)
    with pytest.raises(ClusterUnavailable):
        own_pod(connection)


# A launcher that starts again


def test_a_job_of_another_size_is_stopped_before_the_next_is_made(cluster, started):
    run, launcher = started(f"""trap 'touch "$3/saved"; exit 143' TERM; echo up; {SLEEP}""")
    cluster.wait(lambda: both_run(cluster) and all("up" in cluster.pod_log(pod) for pod in cluster.pods()))
    assert next_attempt(run) == 1
    config = run.folder.config()
    larger = config.model_copy(update={"parallel": config.parallel.model_copy(update={"num_nodes": 4})})
    run.folder.create(larger)
    assert next_attempt(run) == 2
    assert cluster.jobs() == [] and (run.folder.path / "saved").exists()
    assert attempt_record(run)["outcome"] == "lost"
    launcher._close()


def test_the_end_of_an_earlier_pipeline_job_is_not_this_one_s(cluster, started):
    run, launcher = started("exit 64", pipeline_job="first")
    eventually(lambda: launcher.poll() is Phase.FAILED, "the job does not fail", timeout=10)
    launcher._close()
    assert next_attempt(run, "first") == 1, "it is told why it failed"
    assert next_attempt(run, "second") == 2


def test_pods_whose_job_is_gone_save_before_the_next_attempt(cluster, started, monkeypatch):
    # The pods of the double are processes of this machine.
    monkeypatch.setattr("components.jobs.launchers.local.stop_leftovers", lambda run_folder: 0)
    script = f"""
if [ $SHARDLINE_ATTEMPT = 1 ]; then
  mkdir -p "$3/attempts/1/logs"
  trap 'sleep 2; touch "$3/saved-$SHARDLINE_NODE"; exit 143' TERM; echo up; {SLEEP}
fi
[ -e "$3/saved-0" ] && [ -e "$3/saved-1" ] && {SEAL}"""
    run, launcher = started(script)
    cluster.wait(lambda: both_run(cluster) and all("up" in cluster.pod_log(pod) for pod in cluster.pods()))
    launcher._close()
    # As with its owner: the job is gone at once, and its pods are not.
    cluster.store.delete(PYTORCHJOBS, "demo", "run-1", policy="Background")
    cluster.wait(lambda: cluster.job("run-1") is None)
    supervise(Step(run.folder))
    assert run.folder.attempts() == [1, 2] and attempt_record(run, 2)["outcome"] == "succeeded"


def test_pods_that_nobody_ends_are_not_trained_beside(cluster, started, monkeypatch):
    monkeypatch.setattr(requests, "LEFT_S", 0.3)
    run, launcher = started(f'mkdir -p "$3/attempts/1/logs"; {WAITS}')
    cluster.wait(lambda: both_run(cluster) and (run.folder.attempt(1) / "logs").is_dir())
    launcher._close()
    cluster.store.delete(PYTORCHJOBS, "demo", "run-1", policy="Orphan")
    cluster.wait(lambda: cluster.job("run-1") is None)
    with pytest.raises(UserError, match=r"nobody ends them .*run-1-worker-0"):
        supervise(Step(run.folder))


def test_attempts_of_earlier_starts_count(cluster, pods_run):
    run = pods_run("exit 1", resilience={"max_attempts": 2})
    run.folder.attempt(1).mkdir(parents=True)
    record = {"number": 1, "launcher": "pytorchjob", "name": "run-1", "ended": 1.0, "outcome": "signal"}
    record["past"] = {"number": 1, "what": "signal"}
    (run.folder.attempt(1) / "attempt.json").write_text(json.dumps({**record, "pipeline_job": "pipeline"}))
    with pytest.raises(StepFailed, match="max_attempts is 2"):
        supervise(Step(run.folder), job="pipeline")
    assert run.folder.attempts() == [1, 2]


NODE = """
ended='{"kind": "ranks_ended", "source": "node-N", "attempt": 1, "node": N, "host": "h", "exit_code": -9}'
echo "${ended//N/$SHARDLINE_NODE}" >> "$3/events/node-$SHARDLINE_NODE.jsonl"
until grep -q '"attempt": 2' "$3/orders"; do sleep 0.1; done
mkdir -p "$3/attempts/2/nodes"
until [ -e "$3/go" ]; do sleep 0.1; done
"""
"""A node whose ranks are killed at once, and whose next attempt is made in place."""


def test_a_launcher_that_is_killed_amid_a_recovery_in_place_goes_on_with_the_same_job(cluster, pods_run):
    run = pods_run(f"{NODE}{SEAL}")
    first = launch(run)
    cluster.wait(lambda: (run.folder.attempt(2) / "nodes").is_dir(), 60)
    first.kill()
    first.wait()
    began = attempt_record(run, 2)["phases"]
    threading.Timer(1.5, (run.folder.path / "go").touch).start()
    supervise(Step(run.folder))
    assert len(cluster.jobs()) == 1 and run.folder.attempts() == [1, 2], "no second launch"
    second = attempt_record(run, 2)
    assert second["in_place"] and second["name"] == "run-1" and second["outcome"] == "succeeded"
    assert second["phases"]["running"] == began["running"], "its limits did not begin anew"
    assert [incident.what for incident in incidents(run)] == ["signal"]


def test_nodes_that_left_after_their_launcher_was_killed_are_no_failure(cluster, started):
    run, launcher = started("exit 1")
    eventually(lambda: launcher.poll() is Phase.FAILED, "the job does not fail", timeout=10)
    launcher._close()
    record = attempt_record(run)
    write_record(run.folder, {**record, "ended": 1.0, "outcome": "signal"})
    write_record(run.folder, {**record, "number": 2, "job_attempt": 1, "in_place": True})
    assert next_attempt(run) == 3
    assert attempt_record(run, 2)["outcome"] == "not_begun"
