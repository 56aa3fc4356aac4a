"""`shardline status` and `logs` of submitted runs that have no job, or never get one."""

import functools
import threading

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.kubeflow.client import connect
from pipelines.kubeflow.submit import submit
from pipelines.kubeflow.submitted_run import watch_submitted
from tests.doubles.cluster import FakeCluster
from tests.doubles.kubeflow import FakeKubeflow
from tests.pipelines.training_jobs import start_job
from training.errors import UserError


@pytest.fixture(scope="module")
def double(tmp_path_factory):
    with FakeKubeflow(tmp_path_factory.mktemp("kubeflow")) as double:
        yield double


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with FakeCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.add_claim("shardline-store")
        yield cluster


@pytest.fixture(autouse=True)
def here(double, cluster, monkeypatch):
    for name in ("KFP_TOKEN", "KFP_NAMESPACE", "KFP_ENDPOINT", "SHARDLINE_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setenv("KF_PIPELINES_ENDPOINT", double.url)
    quick = functools.partial(watch_submitted, interval_s=0.05)
    monkeypatch.setattr("pipelines.kubeflow.submitted_run.watch_submitted", quick)


def begin(double, name):
    """Submit a run; returns its id."""
    return submit(connect(double.url), "quickstart", name=name).run_id


def shardline(*arguments, expect=0):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == expect, (result.output, result.exception)
    return result


def url(double, run_id):
    return f"{double.url}/#/runs/details/{run_id}"


def test_a_run_without_a_job_is_shown_as_kubeflow_knows_it(double, cluster):
    run_id = begin(double, "early")
    double.set_state(run_id, "RUNNING", {"preflight": "SUCCEEDED", "download-model": "RUNNING"})
    said = f"running in Kubeflow Pipelines: {url(double, run_id)}"
    assert shardline("status", "early").output.splitlines() == [
        "early in the namespace demo, at the step download_model",
        said,
    ]
    logs = shardline("logs", "early")
    assert logs.stdout == ""
    assert logs.stderr.splitlines() == ["early: at the step download_model", f"early: {said}"]


def test_a_run_that_failed_before_its_job_names_the_step_and_ends_with_1(double, cluster):
    run_id = begin(double, "wrong")
    double.set_state(run_id, "FAILED", {"preflight": "FAILED", "stop-training": "SUCCEEDED"}, error="it is broken")
    title, state, error = shardline("status", "wrong").output.splitlines()
    assert title == "wrong in the namespace demo, failed at the step preflight"
    assert (
        state == f"failed in Kubeflow Pipelines: {url(double, run_id)}" and error == "Kubeflow says: it is broken"
    )
    followed = shardline("status", "wrong", "--follow", expect=1).output.splitlines()
    assert followed[0][9:] == "wrong: failed at the step preflight" and len(followed) == 3
    for follow in ([], ["--follow"]):
        assert "wrong: failed at the step preflight" in shardline("logs", "wrong", *follow, expect=1).stderr


def test_a_run_that_was_stopped_before_its_job_has_not_failed(double, cluster):
    double.set_state(begin(double, "stopped"), "CANCELED", {"download-model": "FAILED"})
    title, state = shardline("status", "stopped").output.splitlines()
    assert title == "stopped in the namespace demo, stopped at the step download_model"
    assert state.startswith("canceled in Kubeflow Pipelines: ")


@pytest.mark.parametrize("command", ["status", "logs"])
def test_following_waits_for_the_job_and_goes_on_with_it(double, cluster, command):
    run_id = begin(double, f"waits-{command}")
    double.set_state(run_id, "RUNNING", {"preflight": "RUNNING"})

    def train():
        double.set_state(run_id, "RUNNING", {"preflight": "SUCCEEDED", "train": "RUNNING"})
        start_job(cluster, f"waits-{command}", "echo words", ready=False)

    later = threading.Timer(0.5, train)
    later.start()
    result = shardline(command, f"waits-{command}", "--follow")
    later.join()
    assert f"waits-{command}: at the step preflight" in result.output
    if command == "logs":
        assert result.stdout == "[node 0] words\n"
    else:
        assert "attempt 1: succeeded" in result.output.splitlines()[-1]


def test_a_run_that_ended_well_without_a_job_is_no_failure(double, cluster):
    double.set_state(begin(double, "unchanged"), "SUCCEEDED", {"preflight": "SUCCEEDED"})
    assert "succeeded in Kubeflow Pipelines" in shardline("status", "unchanged", "--follow").output
    shardline("logs", "unchanged", "--follow")


def test_a_run_that_kubeflow_does_not_know_either_or_cannot_be_asked_about(double, cluster, monkeypatch):
    for command in ("status", "logs"):
        message = str(CliRunner().invoke(app, [command, "other"]).exception)
        assert message.startswith("there is no job of the run 'other' in the namespace 'demo'")
        assert message.endswith(f"nor does Kubeflow Pipelines at {double.url} have a run of this name")
    result = CliRunner().invoke(app, ["status", "other", "--host", "http://127.0.0.1:9"])
    assert isinstance(result.exception, UserError)
    assert "; Kubeflow Pipelines could not be asked: " in str(result.exception)
