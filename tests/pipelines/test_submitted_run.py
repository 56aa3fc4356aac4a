"""A submitted run as a notebook follows it: Kubeflow's double has the graph, the cluster's double has the jobs."""

import threading

import pytest

from components.cluster.client import connect as connect_cluster
from components.cluster.jobs import delete_job
from components.cluster.kinds import PYTORCHJOB
from pipelines.kubeflow import submitted_run
from pipelines.kubeflow.client import connect
from pipelines.kubeflow.submit import submit
from pipelines.kubeflow.submitted_run import outcome_page, watch_submitted
from tests.doubles.cluster import FakeCluster
from tests.doubles.kubeflow import FakeKubeflow
from tests.pipelines.training_jobs import UNTIL_STOPPED, end, report_step, start_job
from training.errors import UserError


@pytest.fixture
def double(tmp_path, monkeypatch):
    for name in ("KFP_TOKEN", "KFP_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    with FakeKubeflow(tmp_path / "kubeflow") as double:
        yield double


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    with FakeCluster(tmp_path / "cluster") as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        cluster.add_claim("shardline-store")
        yield cluster


@pytest.fixture
def kubeflow(double):
    return connect(double.url)


@pytest.fixture
def run_id(kubeflow):
    return submit(kubeflow, "quickstart", name="tiny").run_id


def test_a_run_is_followed_from_its_first_step_to_its_last(double, kubeflow, cluster, run_id):
    seen = []
    for view in watch_submitted(kubeflow, connect_cluster(), "tiny", interval_s=0.05):
        seen.append(view)
        if len(seen) == 1:
            assert view.attempts == () and not view.ended and view.succeeded is None
            double.set_state(run_id, "RUNNING", {"preflight": "RUNNING"})
        elif view.stage == "preflight":
            double.set_state(run_id, "RUNNING", {"preflight": "SUCCEEDED", "train": "RUNNING"})
            job = start_job(cluster, "tiny", "sleep 1")
            report_step(job, 40)
        elif view.stage == "train" and view.phase == "succeeded":
            double.set_state(run_id, "RUNNING", {"train": "SUCCEEDED", "register-model": "RUNNING"})
        elif view.stage == "register_model":
            double.set_state(run_id, "SUCCEEDED", {"register-model": "SUCCEEDED"})
    stages = list(dict.fromkeys(view.stage for view in seen))
    assert stages == ["", "preflight", "train", "register_model"]
    assert any(view.phase == "running" for view in seen)
    assert seen[-1].ended and seen[-1].succeeded and seen[-1].stage == ""
    assert (seen[-1].step, seen[-1].phase) == (40, "succeeded")
    page = outcome_page(kubeflow, seen[-1])
    assert page == f"**tiny** succeeded: [its steps in Kubeflow]({url(double, run_id)})."


def test_an_attempt_whose_job_was_deleted_is_remembered(double, kubeflow, cluster, run_id):
    double.set_state(run_id, "RUNNING", {"train": "RUNNING"})
    report_step(start_job(cluster, "tiny", UNTIL_STOPPED), 7)
    views = watch_submitted(kubeflow, connect_cluster(), "tiny", interval_s=0.05)
    assert next(views).phase == "running"
    delete_job(connect_cluster(), PYTORCHJOB, "tiny-1")
    cluster.wait(lambda: cluster.jobs() == [])
    double.set_state(run_id, "CANCELED", {"train": "FAILED"})
    last = list(views)[-1]
    assert (last.phase, last.step, last.succeeded) == ("gone", 7, False)
    assert outcome_page(kubeflow, last).startswith("**tiny** was stopped at the step `train`: ")


def test_a_failure_is_told_by_the_cluster_or_by_the_report_in_the_store(
    double, kubeflow, cluster, run_id, tmp_path
):
    end(cluster, start_job(cluster, "tiny", "exit 3"))
    double.set_state(run_id, "FAILED", {"train": "FAILED", "stop-training": "SUCCEEDED"}, error="it is broken")
    (view,) = watch_submitted(kubeflow, connect_cluster(), "tiny")
    assert view.ended and view.succeeded is False
    page = outcome_page(kubeflow, view)
    link = f"[its steps and their logs in Kubeflow]({url(double, run_id)})"
    assert page.startswith(f"**tiny** failed at the step `train`: {link}.")
    assert "\n\nKubeflow says: it is broken\n\n- attempt 1: tiny-1-worker-0 on node0: exit code 3" in page
    assert outcome_page(kubeflow, view, tmp_path) == page, "a store that is not mounted"
    attempt = tmp_path / "runs" / "tiny" / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "report.md").write_text("## tiny: attempt 1 failed\n")
    assert outcome_page(kubeflow, view, tmp_path).endswith("it is broken\n\n## tiny: attempt 1 failed\n")


def test_outages_are_waited_out_but_an_unknown_run_is_told_at_once(double, kubeflow, cluster, run_id, monkeypatch):
    views = watch_submitted(kubeflow, connect_cluster(), "tiny", interval_s=0.05)
    next(views)
    double.fail(503, times=2)
    threading.Timer(0.5, double.set_state, (run_id, "SUCCEEDED")).start()
    assert list(views)[-1].succeeded
    with pytest.raises(UserError, match="has no run 'other'"):
        next(watch_submitted(kubeflow, connect_cluster(), "other"))
    monkeypatch.setattr(submitted_run, "_PATIENCE_S", 0)
    double.set_state(run_id, "RUNNING")
    views = watch_submitted(kubeflow, connect_cluster(), "tiny", interval_s=0.05)
    assert outcome_page(kubeflow, next(views)).startswith("**tiny** goes on (running): ")
    double.fail(503, times=100)
    with pytest.raises(UserError, match=r"failed \(503"):
        next(views)


def url(double, run_id):
    return f"{double.url}/#/runs/details/{run_id}"
