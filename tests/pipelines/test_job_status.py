"""`shardline status`, and the views beneath it, against the cluster's double."""

import contextlib
import functools
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from components.cluster.client import connect
from components.cluster.jobs import delete_job
from components.cluster.kinds import PYTORCHJOB
from pipelines.cli import app
from pipelines.jobs.lookup import find_jobs
from pipelines.jobs.view import view_run, view_runs, watch_run
from tests.doubles.cluster import FakeCluster
from tests.pipelines.training_jobs import UNTIL_STOPPED, end, report_step, start_job
from training.errors import UserError


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    with FakeCluster(tmp_path / "cluster") as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        for name in ("SHARDLINE_STORE", "KFP_NAMESPACE", "KF_PIPELINES_ENDPOINT", "KFP_ENDPOINT"):
            monkeypatch.delenv(name, raising=False)
        cluster.add_claim("shardline-store")
        yield cluster


def shardline(*arguments, expect=0):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == expect, (result.output, result.exception)
    return result.output


def mistake(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, UserError), (result.output, result.exception)
    return str(result.exception)


def rows(text):
    return [line.split() for line in text.splitlines() if line.strip()]


def test_a_run_is_shown_with_its_attempts_their_progress_and_why_one_failed(cluster):
    end(cluster, start_job(cluster, "tiny", "echo no; exit 3"))
    name = start_job(cluster, "tiny", UNTIL_STOPPED, attempt=2, nodes=2)
    report_step(name, 40, time=time.time())
    title, head, first, second, *reasons = rows(shardline("status", "tiny"))
    assert " ".join(title) == "tiny in the namespace demo"
    assert head == ["attempt", "phase", "pods", "age", "step", "loss", "tokens/s", "ETA"]
    assert first[:3] == ["1", "failed", "-"] and first[-4:] == ["-"] * 4
    assert second[:3] == ["2", "running", "2/2"]
    assert second[5:8] == ["40/100", "2.500", "12,345"]
    assert " ".join(second[8:]) in ("3 min 20 s", "3 min 19 s", "3 min 18 s")
    assert "attempt 1: tiny-1-worker-0 on node0: exit code 3" in [" ".join(row) for row in reasons]
    # The same, as a notebook has it.
    view = view_run(connect(), "tiny")
    assert (view.phase, view.step, view.num_steps, view.loss) == ("running", 40, 100, 2.5)
    assert (view.tokens_per_s, view.seconds_left, view.ended, view.succeeded) == (12345, 200, False, None)
    assert [attempt.number for attempt in view.attempts] == [1, 2]
    assert view.attempts[0].started <= view.attempts[0].ended <= view.attempts[1].started


def test_all_runs_of_the_namespace_are_listed_the_newest_first(cluster):
    assert shardline("status") == "There are no runs in the namespace 'demo' (the context 'fake').\n"
    end(cluster, start_job(cluster, "older", "true"))
    time.sleep(1.1)  # ages are whole seconds
    start_job(cluster, "newer", UNTIL_STOPPED)
    head, newer, older = rows(shardline("status"))
    assert head == ["run", "attempt", "phase", "nodes", "age", "step", "loss", "tokens/s", "ETA"]
    assert newer[:4] == ["newer", "1", "running", "1"]
    assert older[:4] == ["older", "1", "succeeded", "1"]
    assert [view.run for view in view_runs(connect())] == ["newer", "older"]


def test_what_a_run_waits_for_is_said_in_the_clusters_words(cluster):
    start_job(cluster, "waits", "true", ready=False, node_selector={"gpu": "h100"})
    cluster.wait(lambda: cluster.events("waits-1-worker-0"))
    text = shardline("status", "waits")
    assert rows(text)[2][1:3] == ["starting", "0/1"]
    assert "attempt 1: waits-1-worker-0: Unschedulable: " in text and "node affinity/selector" in text


def test_a_run_that_its_queue_holds_back_is_said_to_be_queued(cluster):
    cluster.add_queue("team")
    start_job(cluster, "queued", "true", ready=False, queue="team")
    text = shardline("status", "queued")
    assert rows(text)[2][1:3] == ["queued", "0/1"]
    assert "attempt 1: the queue 'team' has not admitted it" in text


def test_a_watch_gives_every_change_until_the_end(cluster, tmp_path):
    go = tmp_path / "go"
    name = start_job(cluster, "watched", f"while [ ! -e {go} ]; do sleep 0.05; done")
    seen = []
    for view in watch_run(connect(), "watched", interval_s=0.05, last_step_s=0):
        seen.append(view)
        if view.phase == "running" and view.step is None:
            report_step(name, 1, loss=3.0)
        elif view.step == 1:
            report_step(name, 2, loss=2.0)
        elif view.step == 2:
            go.touch()
    assert list(dict.fromkeys(view.loss for view in seen)) == [None, 3.0, 2.0]
    assert seen[-1].succeeded and seen[-1].phase == "succeeded" and not seen[-2].ended


def test_the_last_step_is_told_although_the_launcher_tells_it_after_the_end(cluster):
    name = start_job(cluster, "last", "true")
    report_step(name, 97)
    end(cluster, name)
    seen = []
    for view in watch_run(connect(), "last", interval_s=0.05, last_step_s=20):
        if not seen:
            report_step(name, 100)
        seen.append(view.step)
    assert seen == [97, 100]
    (again,) = watch_run(connect(), "last", last_step_s=60)
    assert again.step == 100


def test_a_watch_waits_for_the_attempt_after_one_that_failed(cluster):
    end(cluster, start_job(cluster, "again", "exit 1"))
    seen = []
    for view in watch_run(connect(), "again", interval_s=0.05, successor_s=5):
        if not seen:
            assert view.ended and not view.succeeded
            start_job(cluster, "again", "true", attempt=2)
        seen.append(view)
    assert seen[-1].succeeded and len(seen[-1].attempts) == 2
    assert seen[-1].attempts[0].reasons == seen[0].attempts[0].reasons != ()


def test_a_run_that_failed_long_ago_is_not_waited_for(cluster, monkeypatch):
    end(cluster, start_job(cluster, "old", "exit 1"))
    later = SimpleNamespace(
        time=lambda: time.time() + 60, monotonic=time.monotonic, sleep=lambda seconds: pytest.fail("it waits")
    )
    monkeypatch.setattr("pipelines.jobs.view.time", later)
    (view,) = watch_run(connect(), "old", successor_s=30)
    assert view.succeeded is False


def test_the_other_kind_of_job_is_shown_too(cluster):
    cluster.install("trainer.kubeflow.org")
    end(cluster, start_job(cluster, "one", "true"))
    start_job(cluster, "other", UNTIL_STOPPED, nodes=2, kind="trainjob")
    attempts = {view.run: view.newest for view in view_runs(connect())}
    seen = {run: (a.kind, a.phase, a.num_nodes, a.pods_ready) for run, a in attempts.items()}
    assert seen == {"one": ("PyTorchJob", "succeeded", 1, None), "other": ("TrainJob", "running", 2, 2)}
    assert shardline("logs", "other") == "[node 0] begins\n[node 1] begins\n"
    (job,) = find_jobs(connect(), "other")
    assert job.run_folder == "/mnt/shardline/runs/other"
    assert "The run other has stopped." in shardline("stop", "other", "--yes")
    assert find_jobs(connect(), "other") == []


def test_a_watch_outlives_an_api_server_that_is_away_and_sees_a_deleted_job(cluster):
    name = start_job(cluster, "deleted", UNTIL_STOPPED)
    watching = watch_run(connect(), "deleted", interval_s=0.05, successor_s=0)
    assert next(watching).phase == "running"
    cluster.fail(503, times=3)
    threading.Timer(1.0, delete_job, (connect(), PYTORCHJOB, name)).start()
    last = list(watching)[-1]
    assert (last.phase, last.succeeded) == ("gone", False)
    assert last.attempts[0].reasons == ("its job was deleted",)


@pytest.mark.parametrize(("command", "code", "phase"), [("exit 0", 0, "succeeded"), ("exit 5", 1, "failed")])
def test_following_ends_with_the_outcome_and_without_a_terminal_writes_a_line_for_each_change(
    cluster, tmp_path, monkeypatch, command, code, phase
):
    quick = functools.partial(watch_run, interval_s=0.1, successor_s=0, last_step_s=0)
    monkeypatch.setattr("pipelines.jobs.submitted.watch_run", quick)
    go = tmp_path / "go"
    name = start_job(cluster, "followed", f"while [ ! -e {go} ]; do sleep 0.05; done; {command}")
    report_step(name, 7, time=time.time())
    threading.Timer(0.5, go.touch).start()
    lines = shardline("status", "followed", "--follow", expect=code).splitlines()
    first = "followed attempt 1: running, 1/1 pods ready, step 7/100, loss 2.500, 12,345 tokens/s, 3 min "
    assert first in lines[0] and lines[0].endswith(" s left")
    assert [line for line in lines if f"followed attempt 1: {phase}, step 7/100" in line], lines
    assert len(lines) == len({line[9:] for line in lines}), "nothing is said twice"
    assert len(lines) <= 6


def test_an_unknown_run_is_answered_with_those_that_there_are(cluster):
    message = mistake("status", "tiny")
    assert message.startswith("there is no job of the run 'tiny' in the namespace 'demo'")
    assert "no runs of Shardline there at all" in message
    start_job(cluster, "quickstart-1", "true", ready=False)
    assert "did you mean 'quickstart-1'? the runs there are quickstart-1" in mistake("status", "quickstart-2")
    for command in ("status", "logs", "stop"):
        assert "the run name 'No Name' is not valid" in mistake(command, "No Name")
    assert "no run is named" in mistake("status", "--follow")


def test_where_to_look_before_a_job_is_said_where_no_kubeflow_is_named(cluster):
    for command in ("status", "logs"):
        assert mistake(command, "tiny").endswith("set KF_PIPELINES_ENDPOINT or give --host")


def test_a_missing_cluster_kind_or_right_is_one_sentence(cluster, monkeypatch, tmp_path):
    start_job(cluster, "tiny", "true", ready=False)
    # A right to the other kind is not needed where that is not even installed.
    cluster.deny("list", "trainjobs")
    assert rows(shardline("status"))[1][0] == "tiny"
    cluster.deny("list", "pytorchjobs")
    assert "cannot list the pytorchjobs" in mistake("status", "tiny") and "not permitted" in mistake("status")
    cluster.uninstall("kubeflow.org")
    assert "neither PyTorchJobs nor TrainJobs" in mistake("status")
    cluster.fail(status=503, times=1000)
    monkeypatch.setattr("components.cluster.client._BACKOFF_S", (100,))
    result = CliRunner().invoke(app, ["status"])
    assert result.exit_code == 1 and result.output.startswith("error: cannot ask the cluster for")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    message = mistake("status", "tiny")
    assert message.startswith("there is no cluster to talk to") and "--store" not in message
    assert mistake("status").endswith("; runs of this machine are listed with --store, as in --store .shardline")
    (tmp_path / ".shardline/runs/tiny/events").mkdir(parents=True)
    assert mistake("status", "tiny").endswith("the run is on this machine: add --store .shardline")
    assert mistake("logs", "tiny").endswith("the run is on this machine, with its logs in .shardline/runs/tiny")


def test_a_live_table_ends_with_the_run(cluster, tmp_path):
    """In a pseudo-terminal, as a person has it."""
    go = tmp_path / "go"
    start_job(cluster, "live", f"while [ ! -e {go} ]; do sleep 0.05; done")
    master, slave = pty.openpty()
    command = [Path(sys.executable).with_name("shardline"), "status", "live", "--follow"]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # Linux' word for the other side's end
            while chunk := os.read(master, 2**16):
                shown += chunk
                if b"running" in shown:
                    go.touch()
    os.close(master)
    assert process.returncode == 0
    assert b"running" in shown and b"succeeded" in shown and b"\x1b[" in shown


def test_numbers_that_are_none_are_left_out(cluster):
    nowhere = {"tokens_per_s": float("inf"), "seconds_left": float("nan"), "time": float("inf")}
    report_step(start_job(cluster, "odd", UNTIL_STOPPED), 3, loss=float("nan"), **nowhere)
    _, attempt = rows(shardline("status"))
    assert attempt[-4:] == ["3/100", "nan", "-", "-"]


def test_a_narrow_terminal_gets_lines_in_which_nothing_is_cut(cluster, monkeypatch):
    report_step(start_job(cluster, "tiny", UNTIL_STOPPED), 40, time=time.time())
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    for arguments in (["status"], ["status", "tiny"]):
        text = shardline(*arguments)
        assert "…" not in text
        words = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
        assert "tiny attempt 1: running, 1/1 pods ready, step 40/100, loss 2.500, 12,345 tokens/s" in words
        assert max(map(len, text.splitlines())) <= 40


def test_a_namespace_that_can_be_none_is_told(cluster):
    assert "the namespace '../x' is not valid" in mistake("status", "--namespace", "../x")


def test_a_store_without_runs_is_told_as_a_store(tmp_path):
    assert "so check the path" in mistake("status", "a", "--store", str(tmp_path))
