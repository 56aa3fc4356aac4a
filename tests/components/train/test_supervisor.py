"""The train step's supervisor over real torchrun processes of a tiny run."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from components.jobs import supervisor
from components.jobs.attempts import verdict_of
from components.jobs.job import TrainingJob
from components.jobs.launchers import local
from components.jobs.launchers.local import LocalLauncher
from components.jobs.supervisor import stop_abandoned
from components.step import Interrupted, StepFailed
from components.step import Step as RealStep
from components.train.supervisor import supervise
from training.checkpoint.folders import checkpoints
from training.errors import EXIT_STOP, UserError
from training.events import Decided, Incident, Note, read_events
from training.guard.warm import JOB_VARIABLE
from training.heartbeat import Heartbeat


class Step(RealStep):
    """A step of a pipeline, in this process and at work from the beginning; keeps what it says in `notes`."""

    def __init__(self, folder):
        super().__init__("train", str(folder.root), folder.run)
        self.notes = []

    def write(self, event):
        if isinstance(event, Note):
            self.notes.append(event.text)
        super().write(event)


def attempt_record(run, number=1):
    return json.loads((run.folder.attempt(number) / "attempt.json").read_text())


def incidents(run):
    return [event for event in read_events(run.folder.events) if isinstance(event, Incident)]


def processes_of(run):
    """Every process of the run's job: nodes, ranks, and what ranks are forked from."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        is_node = str(run.folder.path) in (process.info["cmdline"] or [])
        of_node = (process.info["environ"] or {}).get(JOB_VARIABLE) == str(run.folder.path)
        if (is_node or of_node) and process.pid != os.getpid():
            found.append(process)
    return found


def ranks_of(run):
    return [p for p in processes_of(run) if any("forkserver" in word for word in p.parent().cmdline())]


def eventually(condition, what, timeout=180):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def when_stepping(run, action, step=1):
    """Run `action` in a thread once the run has made a step."""

    def wait():
        eventually(lambda: any(s.step >= step for s in run.steps()), "the run makes no steps")
        action()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


LONG = {"training": {"max_steps": 40}, "checkpoint": {"every_steps": 2}, "parallel": {"procs_per_node": 2}}


def test_a_run_is_trained_once_and_recorded(make_run, capsys):
    run = make_run(training={"max_steps": 2}, parallel={"procs_per_node": 2})
    step = Step(run.folder)
    folder, facts = supervise(step)
    assert (folder / "model.safetensors.index.json").is_file()
    assert facts["steps"] == 2 and facts["attempts"] == 1
    record = attempt_record(run)
    assert record["outcome"] == "succeeded" and record["launcher"] == "local" and record["exit_code"] == 0
    assert "step 2/2" in capsys.readouterr().out, "progress is printed as it comes"
    assert (run.folder.attempt(1) / "logs" / "rank-1.err").is_file()
    again = Step(run.folder)
    supervise(again)
    assert run.folder.attempts() == [1] and "already" in again.notes[0]
    # What was trained is told even when its events are gone, and belongs to its model and data alone.
    shutil.rmtree(run.folder.events)
    _, facts = supervise(Step(run.folder))
    assert facts == {"run": "run", "attempts": 1}
    make_run(num_rows=9, training={"max_steps": 2}, parallel={"procs_per_node": 2})
    with pytest.raises(UserError, match=r"with the dataset rows-13, but its dataset is now rows-9: give this run"):
        supervise(Step(run.folder))


def test_a_killed_rank_goes_on_in_place_and_a_machine_that_is_needed_elsewhere(make_run):
    run = make_run(**LONG)

    def disturb():
        # It is written while training goes on, so it may come some steps after its own.
        eventually(lambda: checkpoints(run.folder.checkpoints), "no checkpoint")
        ranks_of(run)[0].kill()
        eventually(lambda: any(s.attempt == 2 for s in run.steps()), "the second attempt makes no steps")
        # As whoever stops the machine does, to all of its processes.
        psutil.Process(attempt_record(run)["pid"]).terminate()

    when_stepping(run, disturb, step=3)
    step = Step(run.folder)
    supervise(step)
    assert run.folder.attempts() == [1, 2, 3]
    killed, preempted = incidents(run)
    assert killed.what == "signal" and killed.exit_code == 137 and "signal 9" in killed.evidence
    assert killed.fingerprint == "signal 9" and killed.host and killed.step >= 3
    assert (preempted.what, preempted.exit_code) == ("preempted", 143)
    decided = [event.action for event in read_events(run.folder.events) if isinstance(event, Decided)]
    assert decided == ["restart_in_place", "restart_elsewhere"]
    assert attempt_record(run, 2)["in_place"] and attempt_record(run, 2)["name"] == "run-1"
    assert not attempt_record(run, 2)["past"]["counts"] and "in_place" not in attempt_record(run, 3)
    assert [s.step for s in run.steps()] == list(range(1, 41))
    assert attempt_record(run, 3)["outcome"] == "succeeded"
    steps = [s for s in read_events(run.folder.events) if s.kind == "train_step"]
    last_of_second = max(s.step for s in steps if s.attempt == 2)
    assert min(s.step for s in steps if s.attempt == 3) == last_of_second + 1, "a preemption loses no step"
    assert min(s.step for s in steps if s.attempt == 2) > 1, "the second attempt began from a checkpoint"


def test_a_loss_that_is_never_finite_ends_the_run_with_a_remedy_after_one_more_try(make_run):
    run = make_run(
        training={"max_steps": 20, "learning_rate": 1e300, "warmup_ratio": 0}, parallel={"procs_per_node": 2}
    )
    with pytest.raises(StepFailed, match=r"lower training\.learning_rate") as caught:
        supervise(Step(run.folder))
    assert caught.value.exit_code == EXIT_STOP and run.folder.attempts() == [1, 2]
    first, second = incidents(run)
    assert first.what == second.what == "nonfinite" and first.fingerprint == second.fingerprint


def test_the_same_error_twice_is_the_end_with_the_traceback_of_the_first_failing_rank(make_run):
    run = make_run(training={"max_steps": 2}, parallel={"procs_per_node": 2})
    samples = run.folder.inputs().dataset / "train.arrow"
    samples.write_bytes(bytes(samples.stat().st_size))
    with pytest.raises(StepFailed, match="ArrowInvalid") as caught:
        supervise(Step(run.folder))
    assert "the same failure as in attempt 1" in str(caught.value) and caught.value.exit_code == EXIT_STOP
    assert run.folder.attempts() == [1, 2]
    assert processes_of(run) == []


def test_a_stop_saves_and_leaves_no_process(make_run):
    run = make_run(**LONG)
    before = signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(Interrupted()))
    try:
        when_stepping(run, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Interrupted):
            supervise(Step(run.folder))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert processes_of(run) == []
    done = run.steps()[-1].step
    assert (run.folder.checkpoints / f"step-{done:08d}" / "manifest.json").is_file()
    assert attempt_record(run)["outcome"] == "interrupted"
    supervise(Step(run.folder))
    assert [s.step for s in run.steps()] == list(range(1, 41))


SUPERVISE = """
import sys
from tests.components.train.test_supervisor import Step
from components.train.supervisor import supervise
from training.run_folder import RunFolder
supervise(Step(RunFolder.at(sys.argv[1])))
"""


def start_launcher(run):
    return subprocess.Popen([sys.executable, "-c", SUPERVISE, str(run.folder.path)], stdout=subprocess.DEVNULL)


def test_killing_node_and_then_launcher_leaves_no_process(make_run):
    run = make_run(**{**LONG, "training": {"max_steps": 4000}})
    launcher = start_launcher(run)
    try:
        eventually(lambda: run.steps(), "the run makes no steps")
        psutil.Process(attempt_record(run)["pid"]).kill()
        eventually(lambda: any(s.attempt == 2 for s in run.steps()), "the second attempt makes no steps")
        assert incidents(run)[0].what == "signal", "it took its ranks with it"
        assert "in_place" not in attempt_record(run, 2)
    finally:
        launcher.kill()
        launcher.wait()
    eventually(lambda: not processes_of(run), "processes are left behind", timeout=60)


def test_two_launchers_of_one_run_do_not_train_it_twice(make_run):
    run = make_run(**{**LONG, "training": {"max_steps": 4000}})
    launcher = start_launcher(run)
    try:
        eventually(lambda: run.steps(), "the run makes no steps")
        with pytest.raises(UserError, match="is being trained by another process"):
            supervise(Step(run.folder))
        assert stop_abandoned(run.folder) == 0, "the exit handler of the second is not to stop the first"
        assert launcher.poll() is None and len(ranks_of(run)) == 2
    finally:
        launcher.terminate()
        launcher.wait(timeout=60)
    eventually(lambda: not processes_of(run), "processes are left behind")


def test_a_rank_that_outlives_its_node_is_killed(make_run, monkeypatch):
    monkeypatch.setattr(local, "_ORPHAN_GRACE_S", 0.3)
    run = make_run()
    run.folder.attempt(1).mkdir(parents=True)
    (run.folder.attempt(1) / "attempt.json").write_text("[]")
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    rank, neighbour = (
        subprocess.Popen([sys.executable, "-c", deaf], env={**os.environ, JOB_VARIABLE: job})
        for job in (str(run.folder.path), f"{run.folder.path}-2")
    )
    # Before it is another program, it has this one's environment.
    eventually(lambda: psutil.Process(rank.pid).environ().get(JOB_VARIABLE), "the rank does not start")
    assert stop_abandoned(run.folder) == 1
    rank.wait(timeout=10)  # its exit code went to psutil
    assert neighbour.poll() is None, "it belongs to another run"
    neighbour.kill()
    neighbour.wait()
    assert stop_abandoned(run.folder) == 0


def test_several_nodes_are_refused_before_anything_starts(tmp_path):
    with pytest.raises(UserError, match=r"parallel\.num_nodes is 2, but cluster\.launcher local runs on one node"):
        LocalLauncher().submit(TrainingJob("run-1", tmp_path / "runs/run", 1, num_nodes=2, procs_per_node=1))
    evaluation = tmp_path / "runs/run/evaluation"
    with pytest.raises(UserError, match=r"evaluation\.num_nodes is 2, but cluster\.launcher local"):
        LocalLauncher().submit(TrainingJob("run-e1", evaluation, 1, num_nodes=2, procs_per_node=1))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 24 MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_disk_that_fills_up_is_told_and_the_run_goes_on_when_there_is_room(make_run, small_disk):
    run = make_run(training={"max_steps": 4}, checkpoint={"every_steps": 2}, parallel={"procs_per_node": 2})
    (run.folder.checkpoints.parent / "checkpoints").symlink_to(small_disk / "checkpoints")
    (small_disk / "checkpoints").mkdir()
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (24 * 2**20 - 200_000))
    with pytest.raises(UserError, match=r"the checkpoint of step [24] needs .* GiB free: free some space"):
        supervise(Step(run.folder))
    filler.unlink()
    supervise(Step(run.folder))
    assert [s.step for s in run.steps()][-4:] == [1, 2, 3, 4]


def test_tokens_beyond_the_model_s_vocabulary_are_refused_before_anything_starts(make_run):
    run = make_run()
    manifest = run.folder.inputs().dataset / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"max_token_id": 95', '"max_token_id": 96'))
    with pytest.raises(UserError, match="has the token 96, but the model's vocabulary ends at 95"):
        supervise(Step(run.folder))
    assert run.folder.attempts() == []


def test_an_error_is_told_even_if_the_job_cannot_be_stopped(make_run, monkeypatch, capsys):
    def fail(launcher, *arguments):
        raise KeyError("first")

    def fail_again(launcher):
        raise RuntimeError("second")

    monkeypatch.setattr(LocalLauncher, "submit", fail)
    monkeypatch.setattr(LocalLauncher, "stop", fail_again)
    run = make_run(parallel={"procs_per_node": 1})
    with pytest.raises(KeyError, match="first"):
        supervise(Step(run.folder))
    assert "ended" not in attempt_record(run) and "may still run: second" in capsys.readouterr().out


def test_a_lock_of_a_machine_that_is_lost_holds_nobody_up(make_run, monkeypatch):
    monkeypatch.setattr(supervisor, "_DEAD_S", 0.2)
    monkeypatch.setattr(supervisor.Recovery, "run", lambda recovery: reached.append(True))
    reached = []
    run = make_run()
    run.folder.attempt(1).mkdir(parents=True)
    record = {"number": 1, "launcher": "pytorchjob"}
    with supervisor._lock(run.folder):
        (run.folder.attempt(1) / "attempt.json").write_text(json.dumps(record))
        with pytest.raises(UserError, match="by another process"):
            supervise(Step(run.folder))
        (run.folder.attempt(1) / "attempt.json").write_text(json.dumps({**record, "namespace": "demo"}))
        supervise(Step(run.folder))
        assert reached
        with Heartbeat(run.folder.launcher_heartbeat, 0.05), pytest.raises(UserError, match="by another process"):
            supervise(Step(run.folder))


def test_a_disk_without_locks_keeps_nobody_from_training(make_run, monkeypatch):
    def unsupported(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(supervisor.fcntl, "flock", unsupported)
    with supervisor._lock(make_run().folder) as mine:
        assert mine


@pytest.mark.parametrize("content", ["[]", "{}", '{"job": "pipeline"}', "", "null"])
def test_a_verdict_that_says_nothing_is_none(make_run, content):
    folder = make_run().folder
    (folder.path / "verdict.json").write_text(content)
    assert verdict_of(folder, "pipeline") is None
