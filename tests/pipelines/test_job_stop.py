"""`shardline stop` against the doubles of the cluster and of Kubeflow Pipelines, and on this machine."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from components.cluster.client import connect
from components.cluster.jobs import delete_job
from components.cluster.kinds import PYTORCHJOB
from pipelines.cli import app
from pipelines.jobs.terminal import confirm
from pipelines.kubeflow.client import connect as connect_kubeflow
from pipelines.kubeflow.submit import submit
from tests.doubles.cluster import FakeCluster
from tests.doubles.kubeflow import FakeKubeflow
from tests.pipelines.training_jobs import UNTIL_STOPPED, end, start_job
from training.errors import UserError
from training.run_folder import RunFolder


@pytest.fixture(autouse=True)
def cluster(tmp_path, monkeypatch):
    for name in ("KF_PIPELINES_ENDPOINT", "KFP_ENDPOINT", "KFP_TOKEN", "KFP_NAMESPACE", "SHARDLINE_STORE"):
        monkeypatch.delenv(name, raising=False)
    with FakeCluster(tmp_path / "cluster") as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        cluster.add_claim("shardline-store")
        yield cluster


def stop(*arguments, expect=0):
    result = CliRunner().invoke(app, ["stop", *arguments])
    assert result.exit_code == expect, (result.output, result.exception)
    return result.output.splitlines()


def mistake(*arguments):
    result = CliRunner().invoke(app, ["stop", *arguments])
    assert isinstance(result.exception, UserError), (result.output, result.exception)
    return str(result.exception)


def test_pods_save_before_the_job_goes_and_ended_jobs_stay(cluster, tmp_path):
    saved = tmp_path / "saved"
    end(cluster, start_job(cluster, "tiny", "exit 1"))
    start_job(
        cluster, "tiny", UNTIL_STOPPED.replace("echo saved", f"sleep 0.5; touch {saved}"), attempt=2, nodes=2
    )
    start_job(cluster, "other", UNTIL_STOPPED)
    lines = stop("tiny", "--yes")
    assert saved.exists() and not cluster.pods("tiny-2")
    assert sorted(job["metadata"]["name"] for job in cluster.jobs()) == ["other-1", "tiny-1"]
    assert lines[0] == "stopping PyTorchJob tiny-2: its pods save first, for at most 30 s"
    assert "The run tiny has stopped." in lines
    assert lines[-1].startswith("Only the job was stopped, because no Kubeflow Pipelines server is named")
    # Again: nothing is left to do, and that is no failure.
    (line,) = stop("tiny", "--yes")
    assert line == (
        "Nothing to stop: the run 'tiny' has no unfinished job in the namespace 'demo' (the context 'fake'); "
        "those that have are other."
    )
    stop("never-there")


def test_a_stop_that_is_under_way_is_waited_for(cluster):
    name = start_job(cluster, "twice", UNTIL_STOPPED.replace("echo saved", "sleep 1"))
    delete_job(connect(), PYTORCHJOB, name)
    assert cluster.job(name)["metadata"]["deletionTimestamp"]
    assert "The run twice has stopped." in stop("twice", "--yes")
    assert cluster.job(name) is None


def test_a_job_that_its_queue_holds_back_is_stopped_too(cluster):
    cluster.add_queue("team")
    start_job(cluster, "queued", "true", ready=False, queue="team")
    stop("queued", "--yes")
    assert cluster.jobs() == []


def test_pods_that_do_not_leave_are_told(cluster, monkeypatch):
    monkeypatch.setattr("pipelines.jobs.stop._LEFT_S", -29.0)
    name = start_job(cluster, "lost", UNTIL_STOPPED)
    cluster.kill_node("node0")
    lines = stop("lost", "--yes", expect=1)
    assert any(line.startswith(f"{name}: the pods do not leave; their machines may be lost") for line in lines)
    assert "The run lost has not stopped altogether." in lines


def test_nothing_is_stopped_without_a_yes(cluster):
    start_job(cluster, "tiny", UNTIL_STOPPED)
    assert mistake("tiny") == "there is no terminal to ask whether to stop the run: give --yes"
    assert cluster.job("tiny-1")["metadata"].get("deletionTimestamp") is None


def test_the_pipeline_is_ended_first(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.kubeflow.client._Client._LOCAL_KFP_CONTEXT", str(tmp_path / "context.json"))
    with FakeKubeflow(tmp_path / "kubeflow") as kubeflow:
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text("model: {name: org/model}\ndata: {train: /mnt/shardline/train.jsonl}\n")
        submit(connect_kubeflow(kubeflow.url), str(recipe), [], name="tiny")
        start_job(cluster, "tiny", UNTIL_STOPPED)
        lines = stop("tiny", "--yes", "--host", kubeflow.url)
        (run,) = kubeflow.runs.values()
        assert run["state"] in ("CANCELING", "CANCELED")
        assert lines[0].startswith("the run is ended in Kubeflow Pipelines: ") and cluster.jobs() == []
        assert not any(line.startswith("Only the job") for line in lines)
        kubeflow.set_state(run["run_id"], "CANCELED")
        assert stop("tiny", "--host", kubeflow.url)[0].startswith("Nothing to stop")
    # The job holds the machines, so it goes also where Kubeflow cannot be asked.
    start_job(cluster, "tiny", UNTIL_STOPPED, attempt=2)
    message = mistake("tiny", "--yes", "--host", "http://127.0.0.1:9")
    assert message.startswith("whether the run goes on in Kubeflow Pipelines is not known: nothing answers at")
    assert cluster.jobs() == []


COMMAND = """
import os, signal, subprocess, sys, time
sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
graph = subprocess.Popen([*sleeps, "pipelines.local_graph", sys.argv[1], str(os.getpid())])
asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
print("begins", flush=True)
while not asked:
    time.sleep(0.05)
graph.terminate()
graph.wait()
print("asked", flush=True)
"""
"""What a run on this machine looks like from outside: a command, and below it its graph."""


def test_a_run_on_this_machine_is_stopped_through_its_command(cluster, tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "store", "local")
    folder.events.mkdir(parents=True)
    assert stop("local", "--store", str(folder.root)) == [
        "Nothing to stop: the run 'local' does not go on on this machine."
    ]
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, f"{folder.path}/pipeline/now/arguments.json"], stdout=subprocess.PIPE
    )
    try:
        assert command.stdout.readline() == b"begins\n"
        assert "no terminal to ask" in mistake("local", "--store", str(folder.root))
        # Also where the store is that of the environment.
        monkeypatch.setenv("SHARDLINE_STORE", str(folder.root))
        lines = stop("local", "--yes")
        assert command.stdout.read() == b"asked\n"
        assert lines[-1].startswith("The run local has stopped.")
    finally:
        command.kill()


def test_a_run_that_trains_in_a_cluster_is_not_looked_for_on_this_machine(tmp_path):
    folder = RunFolder(tmp_path / "store", "far")
    folder.events.mkdir(parents=True)
    folder.attempt(1).mkdir(parents=True)
    (folder.attempt(1) / "attempt.json").write_text('{"number": 1, "launcher": "pytorchjob", "namespace": "ml"}')
    assert stop("far", "--store", str(folder.root))[-1] == (
        "It trains in a cluster: shardline stop far --namespace ml"
    )
    assert "did you mean 'far'?" in mistake("fare", "--store", str(folder.root))


def test_a_closed_input_is_nobody_to_ask(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UserError, match="give --yes"):
        confirm("Stop it?", yes=False)
