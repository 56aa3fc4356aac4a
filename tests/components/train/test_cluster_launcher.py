"""The supervisor over jobs in a cluster, whose pods run what a test says in place of the training."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from components.cluster.client import connect
from components.cluster.jobs import delete_job
from components.cluster.kinds import PYTORCHJOB
from components.jobs.supervisor import stop_abandoned
from components.step import Interrupted, StepFailed
from components.train.supervisor import supervise
from tests.components.train.test_supervisor import Step, attempt_record, eventually, incidents
from training.errors import UserError

SEAL = """mkdir -p "$3/model" && echo '{"about": {}}' > "$3/model/manifest.json\""""
"""A pod's part that makes the run a trained one."""

SLEEP = "sleep 60 & wait $!"
"""Interruptible by a trap, as a process that handles signals is."""


def creations(cluster):
    return [r for r in cluster.requests if r.method == "POST" and r.path.partition("?")[0].endswith("pytorchjobs")]


def test_an_attempt_is_one_job_whose_logs_are_followed(cluster, pods_run, capfd):
    run = pods_run(f'echo "up on $SHARDLINE_NODE"; sleep 0.5; printf "[rank $SHARDLINE_NODE] last"; {SEAL}')
    step = Step(run.folder)
    folder, facts = supervise(step)
    assert folder == run.folder.model and facts["attempts"] == 1
    out = capfd.readouterr().out
    for line in ("[node 0] up on 0", "[node 1] up on 1", "[rank 0] last", "[rank 1] last"):
        assert out.count(f"{line}\n") == 1, out
    (job,) = cluster.jobs()
    assert job["metadata"]["name"] == "run-1" and len(creations(cluster)) == 1
    assert "fieldValidation=Strict" in creations(cluster)[0].path
    record = attempt_record(run)
    assert (record["outcome"], record["launcher"], record["namespace"]) == ("succeeded", "pytorchjob", "demo")
    assert (run.folder.attempt(1) / "pods" / "run-1-worker-1.log").read_text() == "up on 1\n[rank 1] last\n"
    assert supervise(Step(run.folder))[1]["attempts"] == 1, "a trained run is not trained again"


def test_a_job_that_succeeds_without_a_model_has_failed(cluster, pods_run):
    run = pods_run("exit 0", resilience={"max_attempts": 1})
    with pytest.raises(StepFailed, match="training failed"):
        supervise(Step(run.folder))
    assert attempt_record(run)["outcome"] == "exception"


def test_a_failing_pod_ends_the_attempt_and_the_next_job_goes_on(cluster, pods_run):
    fails_first = f"""
if [ $SHARDLINE_ATTEMPT = 1 ]; then
  if [ $SHARDLINE_NODE = 1 ]; then sleep 0.3; echo "Traceback: no luck"; exit 3; fi
  trap 'echo told to stop; exit 143' TERM; {SLEEP}
fi
{SEAL}"""
    run = pods_run(fails_first)
    step = Step(run.folder)
    supervise(step)
    assert sorted(job["metadata"]["name"] for job in cluster.jobs()) == ["run-1", "run-2"]
    (incident,) = incidents(run)
    assert (incident.what, incident.exit_code, incident.node) == ("exception", 3, "run-1-worker-1")
    assert "exited with code 3" in incident.evidence or "exit code 3" in incident.evidence
    page = (run.folder.attempt(1) / "report.md").read_text()
    assert "run: attempt 1 failed" in page and "exit code 3" in page and "1 of 3 attempts" in page
    assert "no luck" in (run.folder.attempt(1) / "pods" / "run-1-worker-1.log").read_text()
    # No two attempts at once: the second job came after the last pod of the first had ended.
    ended = max(
        state["terminated"]["finishedAt"]
        for pod in cluster.pods("run-1")
        for state in [pod["status"]["containerStatuses"][0]["state"]]
    )
    assert cluster.job("run-2")["metadata"]["creationTimestamp"] >= ended


def test_the_ranks_own_words_come_first(cluster, pods_run):
    run = pods_run(
        """
mkdir -p "$3/attempts/1/errors"
echo '{"time": 5, "rank": 1, "exit_code": 64, "message": "lower training.learning_rate", "traceback": ""}' \
  > "$3/attempts/1/errors/rank-1.json"
exit 64"""
    )
    with pytest.raises(UserError, match=r"^lower training\.learning_rate$"):
        supervise(Step(run.folder))
    assert len(cluster.jobs()) == 1, "a mistake is not tried again"


def test_out_of_memory_is_told_by_name(cluster, pods_run):
    run = pods_run(f"trap 'exit 143' TERM; {SLEEP}", resilience={"max_attempts": 1})

    def kill():
        cluster.wait(lambda: sum(p["status"]["phase"] == "Running" for p in cluster.pods("run-1")) == 2)
        cluster.oom_kill("run-1-worker-0")

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(StepFailed, match="OOMKilled"):
        supervise(Step(run.folder))
    (incident,) = incidents(run)
    assert (incident.what, incident.exit_code, incident.node) == ("oom", 137, "run-1-worker-0")
    assert "cluster.memory_per_node" in (run.folder.attempt(1) / "report.md").read_text()


WAITS = {
    "too few GPUs": ({"gpus_per_node": 16}, "Insufficient nvidia.com/gpu"),
    "no such node": ({"node_selector": {"kind": "p5"}}, "node(s) didn't match Pod's node affinity/selector"),
    "a secret that is missing": ({"secrets": {"HF_TOKEN": "no-such/token"}}, 'secret "no-such" not found'),
    "an image that cannot be pulled": (
        {"image": "registry.invalid/team/missing:1"},
        "registry.invalid/team/missing:1",
    ),
    "a claim that is missing": ({"store_claim": "no-such"}, 'persistentvolumeclaim "no-such" not found'),
}


@pytest.mark.parametrize("what", WAITS)
def test_pods_that_do_not_start_are_reported_in_the_cluster_s_own_words(cluster, pods_run, what, monkeypatch):
    settings, words = WAITS[what]
    monkeypatch.setattr("components.jobs.follow._PATIENCE_S", 0.3)
    cluster.images = {"ghcr.io/shardline/shardline-python:0.1.0", "ghcr.io/shardline/shardline:0.1.0"}
    run = pods_run("exit 0", resilience={"start_timeout_s": 2}, **settings)
    step = Step(run.folder)
    with pytest.raises(StepFailed) as caught:
        supervise(step)
    text = str(caught.value)
    assert words in text and "resilience.start_timeout_s is 2" in text
    assert incidents(run)[0].what == "start_timeout" and words in (run.folder.attempt(1) / "report.md").read_text()
    assert cluster.jobs() == [] and cluster.pods() == [], "nothing is left waiting"
    assert len(creations(cluster)) == 1, "another job would wait for the same"


def test_a_quota_that_refuses_the_pods_is_found_in_the_events(cluster, pods_run):
    cluster.add_quota(gpus=8)
    run = pods_run("exit 0", resilience={"start_timeout_s": 2}, gpus_per_node=16)
    with pytest.raises(StepFailed, match="exceeded quota"):
        supervise(Step(run.folder))


def test_a_job_waits_in_its_queue_as_long_as_it_may_and_starts_when_admitted(cluster, pods_run):
    cluster.add_queue("team")
    run = pods_run(SEAL, resilience={"queue_timeout_s": 1, "start_timeout_s": 20}, queue="team")
    with pytest.raises(StepFailed, match="waited in the queue for"):
        supervise(Step(run.folder))
    assert incidents(run)[0].what == "queue_timeout" and cluster.jobs() == []

    patient = pods_run(SEAL, name="patient", resilience={"start_timeout_s": 20}, queue="team")

    def admit():
        cluster.wait(lambda: cluster.jobs())
        time.sleep(1.5)
        assert cluster.pods() == []
        cluster.admit("patient-1")

    threading.Thread(target=admit, daemon=True).start()
    step = Step(patient.folder)
    supervise(step)
    assert "the job waits in its queue" in step.notes and attempt_record(patient)["outcome"] == "succeeded"


def test_silent_ranks_are_stopped_and_tried_again(cluster, pods_run):
    script = f"""
if [ $SHARDLINE_ATTEMPT = 1 ]; then trap 'touch "$3/stopped"; exit 143' TERM; {SLEEP}; fi
{SEAL}"""
    run = pods_run(script, resilience={"stall_timeout_s": 2})
    supervise(Step(run.folder))
    (incident,) = incidents(run)
    assert incident.what == "stall_timeout" and "resilience.stall_timeout_s is 2" in incident.evidence
    assert (run.folder.path / "stopped").exists(), "they had the chance to save"


def test_an_attempt_has_an_end(cluster, pods_run):
    run = pods_run(f"trap 'exit 143' TERM; {SLEEP}", resilience={"run_timeout_s": 1})
    with pytest.raises(StepFailed, match="its time is up"):
        supervise(Step(run.folder))
    assert cluster.jobs() == []


def test_sigterm_ends_the_job_after_its_pods_have_saved(cluster, pods_run):
    run = pods_run(f"""trap 'sleep 0.5; touch "$3/saved-$SHARDLINE_NODE"; exit 143' TERM; echo up; {SLEEP}""")

    def stop():
        cluster.wait(lambda: sum(p["status"]["phase"] == "Running" for p in cluster.pods("run-1")) == 2)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(Interrupted()))
    try:
        threading.Thread(target=stop, daemon=True).start()
        with pytest.raises(Interrupted):
            supervise(Step(run.folder))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert cluster.jobs() == [] and cluster.pods() == []
    assert (run.folder.path / "saved-0").exists() and (run.folder.path / "saved-1").exists()
    assert attempt_record(run)["outcome"] == "interrupted"


def test_a_job_that_somebody_deletes_is_not_made_again(cluster, pods_run):
    run = pods_run(f"trap 'exit 143' TERM; {SLEEP}")

    def delete():
        cluster.wait(lambda: sum(p["status"]["phase"] == "Running" for p in cluster.pods("run-1")) == 2)
        delete_job(connect(), PYTORCHJOB, "run-1")

    threading.Thread(target=delete, daemon=True).start()
    with pytest.raises(StepFailed, match="it was asked to stop"):
        supervise(Step(run.folder))
    assert incidents(run)[0].what == "interrupted" and len(creations(cluster)) == 1


SUPERVISE = """
import sys
from tests.components.train.test_supervisor import Step
from components.train.supervisor import supervise
from training.run_folder import RunFolder
supervise(Step(RunFolder.at(sys.argv[1])))
"""


def launch(run):
    return subprocess.Popen([sys.executable, "-c", SUPERVISE, str(run.folder.path)], stdout=subprocess.DEVNULL)


def test_a_launcher_that_was_killed_finds_its_job_again(cluster, pods_run, capfd):
    run = pods_run(f'echo up; while [ ! -e "$3/go" ]; do sleep 0.1; done; echo done; {SEAL}')
    first = launch(run)
    cluster.wait(lambda: sum(p["status"]["phase"] == "Running" for p in cluster.pods("run-1")) == 2, 30)
    first.kill()
    first.wait()
    threading.Timer(1.5, (run.folder.path / "go").touch).start()
    supervise(Step(run.folder))
    assert len(cluster.jobs()) == 1 and run.folder.attempts() == [1], "no second launch"
    assert attempt_record(run)["outcome"] == "succeeded"
    assert capfd.readouterr().out.count("[node 0] up") == 1, "the log is told from its beginning"


def test_a_launcher_that_was_killed_before_it_created_the_job_creates_it_under_the_same_name(cluster, pods_run):
    run = pods_run(SEAL)
    run.folder.attempt(1).mkdir(parents=True)
    record = {"number": 1, "launcher": "pytorchjob", "name": "run-1", "namespace": "demo"}
    (run.folder.attempt(1) / "attempt.json").write_text(json.dumps(record))
    supervise(Step(run.folder))
    assert [job["metadata"]["name"] for job in cluster.jobs()] == ["run-1"] and run.folder.attempts() == [1]


def test_a_job_that_is_gone_after_its_ranks_wrote_counts_as_an_attempt(cluster, pods_run):
    run = pods_run(SEAL)
    (run.folder.attempt(1) / "logs").mkdir(parents=True)
    record = {"number": 1, "launcher": "pytorchjob", "name": "run-1", "namespace": "demo"}
    (run.folder.attempt(1) / "attempt.json").write_text(json.dumps(record))
    supervise(Step(run.folder))
    assert attempt_record(run)["outcome"] == "lost"
    assert [job["metadata"]["name"] for job in cluster.jobs()] == ["run-2"]


def test_the_exit_handler_stops_the_job_of_a_dead_launcher_and_of_no_other(cluster, pods_run, monkeypatch):
    run = pods_run(f"""trap 'touch "$3/saved-$SHARDLINE_NODE"; exit 143' TERM; {SLEEP}""")
    monkeypatch.setattr("components.jobs.supervisor._DEAD_S", 3.5)
    launcher = launch(run)
    cluster.wait(lambda: sum(p["status"]["phase"] == "Running" for p in cluster.pods("run-1")) == 2, 30)
    time.sleep(0.5)
    assert stop_abandoned(run.folder) == 0 and len(cluster.jobs()) == 1, "its launcher lives"
    launcher.kill()
    launcher.wait()
    assert stop_abandoned(run.folder) == 1
    assert cluster.jobs() == [] and (run.folder.path / "saved-1").exists()
    assert stop_abandoned(run.folder) == 0


def test_a_name_that_belongs_to_another_run_is_refused_and_left_alone(cluster, pods_run):
    run = pods_run(f"trap 'exit 143' TERM; {SLEEP}")
    launcher = launch(run)
    cluster.wait(lambda: cluster.jobs(), 30)
    launcher.kill()
    launcher.wait()
    (run.folder.path / "id").write_text("another")
    subprocess.run(["rm", "-r", run.folder.path / "attempts"], check=True)
    with pytest.raises(UserError, match="belongs to another run of this name: give this run another name"):
        supervise(Step(run.folder))
    assert len(cluster.jobs()) == 1


def test_kubeflow_starting_a_failed_step_again_changes_nothing(cluster, pods_run):
    run = pods_run("exit 1", resilience={"max_attempts": 1})
    for _ in range(2):
        with pytest.raises(StepFailed, match="training failed"):
            supervise(Step(run.folder), job="pipeline-1")
    assert run.folder.attempts() == [1]
    with pytest.raises(StepFailed):
        supervise(Step(run.folder), job="pipeline-2")
    assert run.folder.attempts() == [1, 2], "another pipeline tries again"


def test_an_api_server_that_is_away_for_a_while_costs_nothing(cluster, pods_run):
    run = pods_run(f"sleep 2; {SEAL}")
    cluster.fail(status=500, times=1, method="POST")

    def trouble():
        cluster.wait(lambda: sum(p["status"]["phase"] == "Running" for p in cluster.pods("run-1")) == 2)
        cluster.cut_streams()
        cluster.compact()
        cluster.fail(status=0, times=2, method="GET")
        cluster.fail(status=429, times=1, method="GET", headers={"Retry-After": "1"})

    threading.Thread(target=trouble, daemon=True).start()
    supervise(Step(run.folder))
    assert attempt_record(run)["outcome"] == "succeeded" and len(cluster.jobs()) == 1


def test_what_the_api_server_refuses_is_one_sentence(cluster, pods_run):
    cluster.deny("create", "pytorchjobs")
    run = pods_run(SEAL)
    with pytest.raises(UserError, match=r"(?s)^cannot create the PyTorchJob .*not permitted.*deploy/kubernetes"):
        supervise(Step(run.folder))
    assert attempt_record(run)["outcome"] == "interrupted"


def test_progress_stands_on_the_job(cluster, pods_run):
    line = {"kind": "train_step", "time": 1.0, "source": "rank-0", "attempt": 1, "step": 3, "num_steps": 9}
    line |= {"loss": 2.5, "grad_norm": 1.0, "learning_rate": 1e-4, "num_tokens": 100, "num_supervised": 50}
    line |= {"seconds": 2.0, "memory_gib": 1.0}
    script = f"""
if [ $SHARDLINE_NODE = 0 ]; then sleep 1; echo '{json.dumps(line)}' >> "$3/events/rank-0.jsonl"; fi
sleep 2; {SEAL}"""
    run = pods_run(script)
    supervise(Step(run.folder))
    progress = json.loads(cluster.job("run-1")["metadata"]["annotations"]["shardline.dev/progress"])
    assert (progress["step"], progress["num_steps"], progress["loss"]) == (3, 9, 2.5)
    assert (progress["tokens_per_s"], progress["seconds_left"]) == (50, 12)


@pytest.mark.slow
def test_real_ranks_of_a_launcher_that_died_save_and_leave(cluster, make_run):
    run = make_run(
        training={"max_steps": 4000, "precision": "fp32"},
        checkpoint={"every_steps": 100000},
        parallel={"num_nodes": 2, "procs_per_node": 2},
        resilience={"heartbeat_timeout_s": 5},
        cluster={"launcher": "pytorchjob", "store_claim": "store", "gpus_per_node": 0, "ttl_s": 1},
    )
    launcher = launch(run)
    eventually(lambda: run.steps(), "the run makes no steps", timeout=120)
    launcher.kill()
    launcher.wait()
    cluster.wait(lambda: cluster.jobs() == [], 90)
    last = run.steps()[-1].step
    assert (run.folder.checkpoints / f"step-{last:08d}" / "manifest.json").is_file(), "no step is lost"
    cluster.wait(lambda: cluster.pods() == [], 30)


def test_an_operator_that_is_away_at_the_end_does_not_hide_it(cluster, pods_run, monkeypatch):
    monkeypatch.setattr("components.jobs.launchers.cluster._OPERATOR_S", 1)
    run = pods_run(f"sleep 1.5; {SEAL}")

    def leave():
        cluster.wait(lambda: sum(p["status"]["phase"] == "Running" for p in cluster.pods("run-1")) == 2)
        cluster.stop_operator()

    threading.Thread(target=leave, daemon=True).start()
    supervise(Step(run.folder))
    assert attempt_record(run)["outcome"] == "succeeded"


@pytest.fixture
def trainer(cluster):
    cluster.uninstall("kubeflow.org")
    cluster.install("trainer.kubeflow.org")
    return cluster


def test_a_trainjob_does_the_same(trainer, pods_run, capfd):
    run = pods_run(f'echo "$PET_NNODES $PET_NODE_RANK"; {SEAL}', launcher="trainjob")
    supervise(Step(run.folder))
    out = capfd.readouterr().out
    assert "[node 0] 2 0\n" in out and "[node 1] 2 1\n" in out
    assert attempt_record(run)["launcher"] == "trainjob" and attempt_record(run)["outcome"] == "succeeded"


def test_a_trainjob_that_fails_is_followed_by_another(trainer, pods_run, monkeypatch):
    monkeypatch.setattr("components.jobs.launchers.cluster._OPERATOR_S", 1)
    fails_first = f"""
if [ $SHARDLINE_ATTEMPT = 1 ]; then
  if [ $SHARDLINE_NODE = 1 ]; then exit 3; fi
  trap 'exit 143' TERM; {SLEEP}
fi
{SEAL}"""
    run = pods_run(fails_first, launcher="trainjob")
    supervise(Step(run.folder))
    (incident,) = incidents(run)
    assert (incident.what, incident.exit_code) == ("exception", 3) and run.folder.attempts() == [1, 2]
