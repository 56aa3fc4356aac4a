"""The evaluation as a job in a cluster, played by the double, whose pods run the real ranks."""

import json

import pytest
from typer.testing import CliRunner

from components.cluster.client import connect
from components.evaluate.evaluate import evaluate_run
from components.evaluate.job import job_config
from components.jobs.attempts import write_record
from components.jobs.describe import TaskSettings, describe_job
from components.jobs.launchers.cluster import ClusterLauncher
from components.jobs.supervisor import stop_abandoned
from components.step import StepFailed
from components.stop_training.cleanup import clean_up
from pipelines.cli import app
from pipelines.jobs.lookup import find_jobs
from tests.doubles.cluster import FakeCluster
from training.config import RunConfig
from training.errors import UserError
from training.measure.measured import load_measured
from training.measure.request import measured_folder, read_request

CLUSTER = {"launcher": "pytorchjob", "store_claim": "store", "gpus_per_node": 0, "grace_s": 30}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    with FakeCluster(tmp_path / "cluster") as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        cluster.add_claim("store")
        yield cluster


def shardline(*arguments):
    result = CliRunner().invoke(app, arguments)
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def pods_run(tmp_path, script):
    """A cluster section whose pods run a script in place of the ranks."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python"
    python.write_text(f"#!/bin/bash\n{script}\n")
    python.chmod(0o755)
    return {**CLUSTER, "env": {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}}


def evaluate(step, metrics, tmp_path):
    evaluate_run(step, metrics, tmp_path / "report.html", tmp_path / "decision.md", TaskSettings(), "a-pipeline")


def test_two_pods_measure_sharded_models(cluster, trained_run, metrics, tmp_path, capfd):
    # One prompt: the other rank answers an empty one with it.
    evaluation = {"num_generations": 1, "num_scored": 0, "max_new_tokens": 2}
    step = trained_run(
        evaluation={**evaluation, "num_nodes": 2, "procs_per_node": 1, "sharding": "full"},
        parallel={"procs_per_node": 4},
        cluster=CLUSTER,
    )
    evaluate(step, metrics, tmp_path)
    (job,) = cluster.jobs()
    labels = job["metadata"]["labels"]
    assert job["metadata"]["name"] == "a-run-e1" and labels["shardline.dev/run"] == "a-run"
    assert labels["app.kubernetes.io/component"] == "evaluation"
    for subject in read_request(step.folder):
        measured = load_measured(measured_folder(step.folder, subject.name), subject.key)
        assert (measured.num_ranks, measured.sharding) == (2, "full")
    assert "measuring the base model on 2 cpu ranks, sharded over all of them" in capfd.readouterr().out
    # Attempts of the run, as the commands about jobs show them, are the training's.
    assert find_jobs(connect(), "a-run") == [] and step.folder.attempts() == []
    (found,) = find_jobs(connect(), "a-run", purpose=None)
    assert found.name == "a-run-e1" and found.run_folder == str(step.folder.evaluation)
    # The operator removes a pod that has not quite ended when its job has; what it wrote is in the store then.
    told, pods = shardline("logs", "a-run", "--evaluation"), step.folder.evaluation / "attempts/1/pods"
    assert "measuring the tuned model" in told or f"copies of the logs are in the store's {pods}" in told
    assert "measuring the tuned model" in "".join(log.read_text() for log in pods.iterdir())
    with pytest.raises(UserError, match="'other' has no job of its evaluation"):
        shardline("logs", "other", "--evaluation")
    record = json.loads((step.folder.evaluation / "attempts/1/attempt.json").read_text())
    assert (record["outcome"], record["namespace"], record["pipeline_job"]) == ("succeeded", "demo", "a-pipeline")

    evaluate(step, metrics, tmp_path)
    assert len(cluster.jobs()) == 1, "what is measured needs no job"


def test_an_evaluation_that_fails_is_told_as_one_and_tried_as_often_as_allowed(
    cluster, trained_run, metrics, tmp_path
):
    step = trained_run(resilience={"max_attempts": 2}, cluster=pods_run(tmp_path, "exit 3"))
    with pytest.raises(StepFailed, match=r"evaluation failed: a-run-e2-worker-0 .*max_attempts is 2"):
        evaluate(step, metrics, tmp_path)
    assert sorted(job["metadata"]["name"] for job in cluster.jobs()) == ["a-run-e1", "a-run-e2"]
    # Kubeflow starts a step that failed again: what was decided stands.
    with pytest.raises(StepFailed, match="evaluation failed"):
        evaluate(step, metrics, tmp_path)
    assert len(cluster.jobs()) == 2
    step.folder.stop_request.touch()
    assert "attempt 2 failed" in clean_up(step, "FAILED")
    assert not (step.folder.evaluation / "verdict.json").exists()


def test_a_job_that_its_launcher_left_behind_is_stopped_and_no_training_is(cluster, trained_run, tmp_path):
    until_stopped = "trap 'exit 143' TERM; sleep 60 & wait $!"
    step = trained_run(cluster=pods_run(tmp_path, until_stopped))
    for folder in (step.folder, step.folder.seen_from("evaluation")):
        job = describe_job(folder.config(), folder, 1)
        write_record(folder, {"number": 1, "launcher": "pytorchjob", "name": job.name, "namespace": "demo"})
        ClusterLauncher(connect(), "pytorchjob").submit(job)
    cluster.wait(lambda: all(pod["status"]["phase"] == "Running" for pod in cluster.pods()) and cluster.pods())
    assert len(cluster.jobs()) == 2
    assert stop_abandoned(step.folder.seen_from("evaluation")) == 1
    assert [job["metadata"]["name"] for job in cluster.jobs()] == ["a-run-1"]
    # By hand, both are stopped.
    ClusterLauncher(connect(), "pytorchjob").submit(describe_job(folder.config(), folder, 2))
    assert "stopping PyTorchJob a-run-e2" in shardline("stop", "a-run", "--yes")
    assert cluster.jobs() == []


@pytest.mark.parametrize(
    ("sections", "nodes", "procs", "gpus"),
    [
        ({}, 1, 8, None),
        ({"evaluation": {"num_nodes": 2, "procs_per_node": 2}}, 2, 2, 2),
        ({"evaluation": {"procs_per_node": 2}, "cluster": {"gpus_per_node": 8}}, 1, 2, 2),
        ({"evaluation": {"procs_per_node": 2}, "cluster": {"gpus_per_node": 0}}, 1, 2, 0),
        ({"cluster": {"gpus_per_node": 8, "metrics_port": 9000}}, 1, 8, 8),
    ],
)
def test_the_job_has_the_sizes_of_the_evaluation(sections, nodes, procs, gpus):
    config = RunConfig.model_validate(
        {
            "model": {"name": "org/tiny"},
            "data": {"train": "qa.jsonl"},
            "training": {"global_batch_size": 32},
            "parallel": {"num_nodes": 4, "procs_per_node": 8},
            **sections,
        }
    )
    found = job_config(config)
    assert (found.parallel.num_nodes, found.parallel.procs_per_node) == (nodes, procs)
    assert found.cluster.gpus_per_node == gpus and found.cluster.metrics_port is None
