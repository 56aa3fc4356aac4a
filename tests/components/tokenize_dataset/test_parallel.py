import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from components.step import StepFailed
from components.tokenize_dataset import workers
from components.tokenize_dataset.tokenize import tokenize
from components.tokenize_dataset.workers import encode_blocks, usable_cores
from tests.components.tokenize_dataset.blocks import TextBlock, text_setup
from training.errors import EXIT_INTERRUPTED
from training.store import MANIFEST, Store


@pytest.fixture
def at_once(monkeypatch):
    """Workers are started at once and waited for, so that they do all but the first block."""
    start = workers._pool
    pools = []

    def start_and_wait(*arguments):
        pool = start(*arguments)
        pool.submit(workers._noop).result()
        pools.append(pool)
        return pool

    monkeypatch.setattr(workers, "_ALONE_S", 0.0)
    monkeypatch.setattr(workers, "_pool", start_and_wait)
    return pools


def test_any_number_of_workers_gives_the_same_bytes(step_for, write_rows, monkeypatch, at_once):
    monkeypatch.setattr("training.sources.lines.BLOCK_BYTES", 300)
    letters = "abcdefghijklmnopqrstuvwxyz"
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"{one} {two}"},
                {"role": "assistant", "content": two * (n % 3)},
            ]
        }
        for n, (one, two) in enumerate((one, two) for one in letters[:14] for two in letters[:10])
    ]
    path, other = write_rows(rows), write_rows([{"text": f"{one} z"} for one in letters], "other.jsonl")
    found = []
    for count in (1, 2, 3):
        sources = [{"source": str(path), "weight": 1}, {"source": str(other), "weight": 2}]
        step = step_for(sources, f"run-{count}", num_workers=count, max_malformed_rows=100)
        folder = tokenize(step)
        found.append({file.name: file.read_bytes() for file in folder.iterdir()})
        shutil.rmtree(folder)
    assert len(at_once) == 2
    assert MANIFEST in found[0] and len(found[0]) == 5
    assert found[0] == found[1] == found[2]


def test_a_small_set_starts_no_process(monkeypatch):
    monkeypatch.setattr(workers, "_pool", None)
    blocks = [(0, TextBlock(number)) for number in range(5)]
    assert [len(block.encoded.rows) for _, block in encode_blocks(text_setup(), blocks, 8)] == [10] * 5


def test_a_worker_that_is_killed_is_told(at_once):
    blocks = [(0, TextBlock(number, deadly_but_for=os.getpid())) for number in range(9)]
    with pytest.raises(StepFailed, match=r"was killed, as the system does when memory .* fewer than 2"):
        list(encode_blocks(text_setup(), blocks, 2))


def test_no_worker_is_left_when_the_work_is_given_up(at_once):
    blocks = ((0, TextBlock(1, seconds=0.05)) for _ in range(10_000))
    with contextlib.closing(encode_blocks(text_setup(), blocks, 2)) as encoded:
        for _ in range(4):
            next(encoded)
    (pool,) = at_once
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(workers._noop)
    # All workers are children of the one server.
    server = psutil.Process(multiprocessing.forkserver._forkserver._forkserver_pid)
    _, alive = psutil.wait_procs(server.children(), timeout=10)
    assert alive == []


def test_however_the_step_is_ended_it_leaves_no_process_and_no_staging(step_for, write_rows, tmp_path):
    # Without a guard, as a user's script may be: workers are not to run it.
    script = tmp_path / "script.py"
    script.write_text("from tests.components.tokenize_dataset.blocks import main\nmain()\n")
    path = write_rows([{"text": f"a {'b ' * (n % 50)}"} for n in range(10_000)])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ends = {"killed": signal.SIGKILL, "stopped": signal.SIGTERM, "ctrl-c": signal.SIGINT}
    with contextlib.ExitStack() as stack:
        steps = {}
        for run, end in ends.items():
            root = step_for(path, run, num_workers=2).folder.root
            command = [sys.executable, str(script), str(root), run]
            # Ctrl-C reaches the whole group.
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            steps[end] = stack.enter_context(process)
        started = []
        for end, process in steps.items():
            assert "working\n" in iter(process.stdout.readline, "")
            started += psutil.Process(process.pid).children(recursive=True)
            (os.killpg if end == signal.SIGINT else os.kill)(process.pid, end)
    assert len(started) >= 9
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []
    assert [process.returncode for process in steps.values()] == [-signal.SIGKILL, *[EXIT_INTERRUPTED] * 2]
    # What is killed cannot clear up; a later run does.
    (left,) = (root / ".staging").iterdir()
    assert Store(root).sweep() == [left]
    assert not (root / "datasets").exists()


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8), (None, 8)],
)
def test_cores_are_those_that_may_be_used(monkeypatch, tmp_path, quota, cores):
    path = tmp_path / "cpu.max"
    if quota is not None:
        path.write_text(quota)
    monkeypatch.setattr(workers, "_QUOTA", path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert usable_cores() == cores
