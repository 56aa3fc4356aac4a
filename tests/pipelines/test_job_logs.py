"""`shardline logs` against the cluster's double."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from components.cluster.client import connect
from components.cluster.jobs import delete_job
from components.cluster.kinds import PYTORCHJOB
from pipelines.cli import app
from tests.doubles.cluster import FakeCluster
from tests.pipelines.training_jobs import UNTIL_STOPPED, end, is_over, start_job
from training.errors import UserError


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with FakeCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.add_claim("shardline-store")
        yield cluster


@pytest.fixture(autouse=True)
def here(cluster, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    for name in ("KFP_NAMESPACE", "KF_PIPELINES_ENDPOINT", "KFP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


def logs(*arguments, expect=0):
    result = CliRunner().invoke(app, ["logs", *arguments])
    assert result.exit_code == expect, (result.output, result.exception)
    return result.stdout.splitlines(), result.stderr.splitlines()


def mistake(*arguments):
    result = CliRunner().invoke(app, ["logs", *arguments])
    assert isinstance(result.exception, UserError), (result.output, result.exception)
    return str(result.exception)


def test_all_pods_are_printed_in_the_order_of_their_ranks(cluster):
    words = 'echo "[rank $((SHARDLINE_NODE + 4))] first"; echo "from the node"; echo last'
    # The leader writes last.
    command = f'[ "$SHARDLINE_NODE" = 1 ] || sleep 0.3; {words}; {UNTIL_STOPPED.replace("echo begins; ", "")}'
    name = start_job(cluster, "ordered", command, nodes=2)
    cluster.wait(lambda: all("last" in cluster.pod_log(f"{name}-worker-{node}") for node in (0, 1)))
    out, err = logs("ordered")
    assert err == []
    assert out == [
        *("[rank 4] first", "[node 0] from the node", "[node 0] last"),
        *("[rank 5] first", "[node 1] from the node", "[node 1] last"),
    ]
    assert logs("ordered", "--tail", "1")[0] == ["[node 0] last", "[node 1] last"]
    assert logs("ordered", "--node", "1", "--tail", "2")[0] == ["[node 1] from the node", "[node 1] last"]
    assert mistake("ordered", "--node", "2").endswith("has no node 2: name one of 0 to 1")


def test_an_attempt_is_chosen_and_else_the_newest_counts(cluster):
    for attempt in (1, 2):
        end(cluster, start_job(cluster, "several", f"echo of {attempt}", attempt=attempt))
    assert logs("several")[0] == ["[node 0] of 2"]
    assert logs("several", "--attempt", "1")[0] == ["[node 0] of 1"]
    message = mistake("several", "--attempt", "3")
    assert "no job of attempt 3" in message and "it has those of 1, 2" in message
    assert message.endswith("1, 2"), "of an attempt that never was there are no copies"
    delete_job(connect(), PYTORCHJOB, "several-1")
    cluster.wait(lambda: "several-1" not in [job["metadata"]["name"] for job in cluster.jobs()])
    assert mistake("several", "--attempt", "1").endswith("/mnt/shardline/runs/several/attempts/1/pods")


def test_pods_that_are_gone_are_told_with_where_the_copies_are(cluster):
    # When node 0 has ended, the job has, and the operator removes the pod that still runs.
    command = f'test "$SHARDLINE_NODE" = 0 && echo words && exit 0; {UNTIL_STOPPED}'
    name = start_job(cluster, "cleaned", command, nodes=2)
    end(cluster, name)
    cluster.wait(lambda: len(cluster.pods(name)) == 1)
    out, err = logs("cleaned")
    copies = "copies of the logs are in the store's /mnt/shardline/runs/cleaned/attempts/1/pods"
    assert out == ["[node 0] words"] and err == [f"there is no pod of node 1; {copies}"]
    for options in ([], ["--follow"]):
        assert mistake("cleaned", "--node", "1", *options) == (
            f"the pod of node 1 of attempt 1 of the run 'cleaned' has gone; {copies}"
        )
    cluster.delete_pod(f"{name}-worker-0", grace=0)
    cluster.wait(lambda: not cluster.pods(name))
    for options in ([], ["--follow"]):
        assert mistake("cleaned", *options) == f"the pods of attempt 1 of the run 'cleaned' have gone; {copies}"


def test_a_pod_that_does_not_start_is_told_with_why(cluster):
    start_job(cluster, "pending", "true", ready=False, node_selector={"gpu": "h100"})
    cluster.wait(lambda: cluster.events("pending-1-worker-0"))
    out, err = logs("pending")
    assert out == [] and err[0].startswith("node 0 has not started: pending-1-worker-0: Unschedulable: ")


def test_following_prints_every_line_once_in_spite_of_broken_streams_and_ends_with_the_job(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr("pipelines.jobs.logs._LOOK_S", 0.1)
    go = tmp_path / "go"
    count = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo line $i; sleep 0.01; done"
    # The job ends with the first node that succeeds, so both wait for each other.
    together = (
        f"touch {tmp_path}/$SHARDLINE_NODE; while [ ! -e {tmp_path}/0 -o ! -e {tmp_path}/1 ]; do sleep 0.05; done"
    )
    command = f"{count}; while [ ! -e {go} ]; do sleep 0.05; done; {count}; {together}; sleep 0.5"
    name = start_job(cluster, "followed", command, nodes=2)

    def disturb():
        for _ in range(3):
            time.sleep(0.2)
            cluster.cut_streams()
        go.touch()
        time.sleep(0.2)
        cluster.cut_streams()

    threading.Thread(target=disturb, daemon=True).start()
    out, err = logs("followed", "--follow")
    assert is_over(cluster, name) and err == []
    for node in (0, 1):
        said = [line for line in out if line.startswith(f"[node {node}] ")]
        assert said == [f"[node {node}] line {i}" for i in [*range(1, 41), *range(1, 41)]]


def test_following_a_job_that_has_ended_prints_it_and_comes_back(cluster):
    end(cluster, start_job(cluster, "ended", "echo a; echo b; exit 1"))
    assert logs("ended", "-f") == (["[node 0] a", "[node 0] b"], [])


def test_following_ends_when_nobody_reads_any_more(cluster):
    start_job(cluster, "piped", "while :; do echo words; sleep 0.01; done")
    command = f"{Path(sys.executable).with_name('shardline')} logs piped --follow | head -n 2"
    ended = subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert ended.stdout == "[node 0] words\n" * 2 and "Traceback" not in ended.stderr


def test_following_ends_when_the_job_is_deleted(cluster, monkeypatch):
    monkeypatch.setattr("pipelines.jobs.logs._LOOK_S", 0.1)
    name = start_job(cluster, "stopped", UNTIL_STOPPED, nodes=2)
    threading.Timer(0.5, delete_job, (connect(), PYTORCHJOB, name)).start()
    assert logs("stopped", "--follow", "--node", "1")[0] == ["[node 1] begins", "[node 1] saved"]


def test_an_unknown_run_and_options_that_do_not_fit_are_refused(cluster):
    assert "there is no job of the run 'nowhere'" in mistake("nowhere")
    assert (
        mistake("nowhere", "--follow", "--tail", "3") == "--tail and --follow do not go together: give one of them"
    )
