import subprocess
import sys
import time

import pytest

from training.guard import guard
from training.guard.beat import BeatWriter
from training.guard.guard import Guard


@pytest.fixture
def process():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def watch(tmp_path, process):
    watch = Guard({0: process.pid}, tmp_path, tmp_path / "stacks", step_s=0.3, other_s=60)
    yield watch
    watch.stop()


def test_a_rank_that_comes_to_itself_while_its_stacks_are_taken_is_left_alone(
    tmp_path, watch, process, monkeypatch
):
    beat, taken = BeatWriter(0, str(tmp_path)), []

    def take(*args):
        taken.append(args)
        beat("optimizer" if len(taken) < 3 else "evaluation", 1)

    monkeypatch.setattr(guard, "write_stacks", take)
    beat("forward", 1)
    watch.start()
    deadline = time.monotonic() + 20
    while len(taken) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    assert len(taken) == 3 and watch.hang is None and process.poll() is None


def test_a_rank_that_does_not_is_killed(tmp_path, watch, process, monkeypatch):
    monkeypatch.setattr(guard, "write_stacks", lambda *args: None)
    BeatWriter(0, str(tmp_path))("backward", 4)
    watch.start()
    assert process.wait(timeout=20) == -9
    assert watch.hang is not None and (watch.hang.rank, watch.hang.beat, watch.hang.is_stopped) == (0, 1, False)
    assert "in 'backward' of step 5" in watch.hang.sentence


def test_what_launches_and_watches_takes_signals_as_before():
    modules = "components.jobs.launchers.local, training.node, training.guard.attempt"
    code = f"import signal, {modules}; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
