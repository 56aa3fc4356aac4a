"""A run of `shardline run` on this machine, watched and stopped by other commands."""

import os
import subprocess
import sys
import time

import pytest

from training.events import TrainStep, read_events

SHARDLINE = [sys.executable, "-m", "pipelines.cli"]


@pytest.mark.slow
def test_a_run_is_followed_and_stopped_from_outside(workplace):
    store = workplace / "store"
    events = store / "runs" / "watched" / "events"
    env = {**os.environ, "COLUMNS": "200", "SHARDLINE_STORE": str(store), "KUBECONFIG": str(workplace / "none")}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": env}
    settings = ["--set", "training.max_steps=2000", "--name", "watched"]
    run = subprocess.Popen([*SHARDLINE, "run", str(workplace / "tiny.yaml"), *settings], **options)
    try:
        deadline = time.monotonic() + 120
        while not any(isinstance(event, TrainStep) for event in read_events(events)):
            assert time.monotonic() < deadline and run.poll() is None
            time.sleep(0.05)
        follow = subprocess.Popen([*SHARDLINE, "status", "watched", "--follow"], **options)
        line = follow.stdout.readline() + follow.stdout.readline()
        assert "at the step train" in line and "attempt 1: running, step " in line and "/2000, loss " in line
        stop = subprocess.run([*SHARDLINE, "stop", "watched", "--yes"], **options, timeout=60)
        assert stop.returncode == 0 and "The run watched has stopped." in stop.stdout, stop.stdout
        output, _ = run.communicate(timeout=10)
        assert run.returncode == 143 and "Stopped. The same command goes on from here." in output
        followed, _ = follow.communicate(timeout=10)
        assert follow.returncode == 1 and "attempt 1: stopped" in followed
        assert list((store / "runs" / "watched" / "checkpoints").glob("step-*/manifest.json"))
        again = subprocess.run([*SHARDLINE, "stop", "watched", "--store", str(store)], **options)
        assert again.returncode == 0 and again.stdout.startswith("Nothing to stop")
    finally:
        run.kill()
