"""The compiled graph through Kubeflow, with the training as a job in a cluster, both played by doubles."""

import json

import pytest

from pipelines.kubeflow.client import connect
from pipelines.kubeflow.runs import find_run, terminate_run
from pipelines.kubeflow.submit import submit
from tests.doubles.cluster import FakeCluster
from tests.doubles.kubeflow import FakeKubeflow
from training.events import TrainStep, read_events
from training.run_folder import RunFolder

TWO_NODES = [
    "cluster.launcher=pytorchjob",
    "cluster.gpus_per_node=0",
    "parallel.num_nodes=2",
    "parallel.procs_per_node=2",
]


@pytest.fixture
def place(tmp_path):
    with (
        FakeCluster(tmp_path / "cluster") as cluster,
        FakeKubeflow(tmp_path / "kubeflow", execute=True, env={"KUBECONFIG": str(cluster.kubeconfig)}) as kubeflow,
    ):
        cluster.add_claim("shardline-store")
        yield cluster, kubeflow


def steps(folder):
    return [event for event in read_events(folder.events) if isinstance(event, TrainStep)]


@pytest.mark.slow
def test_a_run_that_is_submitted_trains_on_two_nodes_and_is_registered(place, workplace):
    cluster, kubeflow = place
    run = submit(connect(kubeflow.url), str(workplace / "tiny.yaml"), TWO_NODES, name="first")
    assert kubeflow.wait(run.run_id, timeout=240)["state"] == "SUCCEEDED", kubeflow.log(run.run_id)[-4000:]
    folder = RunFolder(kubeflow.claim, "first")
    registration = json.loads((folder.path / "registration.json").read_text())
    assert (registration["name"], str(registration["version"])) == ("tiny", "1")
    jobs = {job["metadata"]["name"]: job for job in cluster.jobs()}
    assert set(jobs) == {"first-1", "first-e1"} and len(cluster.pods("first-1")) > 0
    assert [step.step for step in steps(folder)] == [1, 2, 3, 4, 5, 6] and steps(folder)[0].num_devices == 4
    for job in jobs.values():
        volumes = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["volumes"]
        assert {"persistentVolumeClaim": {"claimName": "shardline-store"}, "name": "shardline-store"} in volumes
    # A schedule that finds nothing new ends after preflight.
    again = submit(
        connect(kubeflow.url),
        str(workplace / "tiny.yaml"),
        TWO_NODES,
        name="second",
        parameters={"skip_unchanged": True},
    )
    assert kubeflow.wait(again.run_id, timeout=120)["state"] == "SUCCEEDED", kubeflow.log(again.run_id)[-4000:]
    assert not (kubeflow.claim / "runs" / "second" / "config.yaml").exists() and len(cluster.jobs()) == 2


@pytest.mark.slow
def test_a_run_that_is_terminated_saves_and_leaves_no_job(place, workplace):
    cluster, kubeflow = place
    connection = connect(kubeflow.url)
    long = [*TWO_NODES, "training.max_steps=4000", "checkpoint.every_steps=100000"]
    run = submit(connection, str(workplace / "tiny.yaml"), long, name="long")
    folder = RunFolder(kubeflow.claim, "long")
    cluster.wait(lambda: folder.events.is_dir() and steps(folder), 240)
    terminate_run(connection, "long")
    kubeflow.wait(run.run_id, "FAILED", timeout=120)
    assert cluster.jobs() == [] and cluster.pods() == []
    last = steps(folder)[-1].step
    assert (folder.checkpoints / f"step-{last:08d}" / "manifest.json").is_file(), "no step is lost"
    found = find_run(connection, "long")
    assert found is not None and found.ended
    assert found.tasks["stop-training"] == "SUCCEEDED"
