"""A node's process over real ranks: restarts in place, hangs, stops."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from training.events import RanksEnded, TrainStep, read_events
from training.guard.beat import beats_folder, read_beats
from training.guard.place import read_places
from training.orders import Orders

LONG = {"training": {"max_steps": 100_000}, "checkpoint": {"every_steps": 20}}


def eventually(condition, timeout=60.0):
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.05)
    return found


def steps(run, attempt=1):
    return [e for e in read_events(run.folder.events) if isinstance(e, TrainStep) and e.attempt == attempt]


def ended(run):
    return [event for event in read_events(run.folder.events) if isinstance(event, RanksEnded)]


def ranks_of(node):
    """Pid of every rank, by its number."""
    (beats,) = Path("/dev/shm").glob(f"shardline-beats-{node.pid}-*")
    return {beat.rank: beat.pid for beat in read_beats(beats)}


@pytest.fixture
def start(make_run):
    nodes = []

    def start(name="run", num_ranks=2, stay_s=60, before=lambda run: None, **sections):
        run = make_run(name, **{**LONG, **sections})
        before(run)
        node = run.popen(num_ranks, SHARDLINE_STAY_S=str(stay_s))
        nodes.append(node)
        eventually(lambda: len(steps(run)) > 2 or node.poll() is not None)
        assert node.poll() is None, node.communicate()[0]
        return run, node

    yield start
    for node in nodes:
        for process in [*psutil.Process(node.pid).children(recursive=True)] if node.poll() is None else []:
            process.kill()
        node.kill()
        node.communicate()


def test_a_killed_rank_is_told_at_once_and_its_node_starts_the_next_attempt_in_place(start):
    run, node = start()
    eventually(lambda: list(run.folder.checkpoints.glob("step-*")))
    os.kill(ranks_of(node)[1], signal.SIGKILL)
    killed = time.time()
    (event,) = eventually(lambda: ended(run))
    assert (event.rank, event.exit_code, event.what, event.node) == (1, -9, None, 0)
    assert event.time - killed < 1.5 and event.source == "node-0"
    place = read_places(run.folder.attempt(1))[0]
    assert (place.ranks, place.pid, place.host) == ((0, 1), node.pid, event.host)
    Orders(run.folder.job_path).give(2)
    first = eventually(lambda: steps(run, 2))[0]
    assert first.step > 1, "it goes on from a checkpoint"
    assert node.poll() is None
    # An order while ranks run ends them without a grace.
    Orders(run.folder.job_path).give(3)
    eventually(lambda: steps(run, 3))
    for process in [*psutil.Process(node.pid).children(recursive=True), node]:
        process.send_signal(signal.SIGTERM)  # as whoever shuts a machine down
    assert node.wait(timeout=30) == 143
    last = steps(run, 3)[-1].step
    assert (run.folder.checkpoints / f"step-{last:08d}" / "manifest.json").is_file(), "a stop saves"
    assert ended(run)[-1].what == "preempted"


def test_ranks_go_with_the_process_that_they_were_forked_from_and_are_not_started_beside_themselves(start):
    run, node = start()
    pids = ranks_of(node)
    psutil.Process(psutil.Process(pids[0]).ppid()).kill()
    (event,) = eventually(lambda: ended(run))
    assert (event.exit_code, event.what) == (255, "signal") and "forked from is gone" in event.evidence
    eventually(lambda: not any(map(psutil.pid_exists, pids.values())), 5)
    Orders(run.folder.job_path).give(2)
    eventually(lambda: steps(run, 2))
    assert not set(ranks_of(node).values()) & set(pids.values())


def test_a_stopped_rank_is_found_named_and_killed_after_its_stacks_were_taken(start):
    run, node = start(stay_s=0, resilience={"hang_timeout_s": 3})
    pids = ranks_of(node)
    os.kill(pids[1], signal.SIGSTOP)
    (event,) = eventually(lambda: ended(run))
    assert (event.what, event.rank, event.beat) == ("hang", 1, -1), event
    assert "resilience.hang_timeout_s is 3" in event.evidence and "its process is stopped" in event.evidence
    assert node.wait(timeout=30) == 137
    assert not any(psutil.pid_exists(pid) for pid in pids.values())
    stacks = run.folder.attempt(1) / "stacks"
    assert "trainer.py" in (stacks / "rank-0.txt").read_text(), "by its own words"
    stopped = (stacks / "rank-1.txt").read_text()
    assert "stopped" in stopped and ("trainer.py" in stopped or "no stacks" in stopped), stopped


def test_a_node_that_is_told_to_stop_after_its_ranks_have_ended_leaves_with_the_exit_code_of_its_rank(start):
    def tell_of_an_earlier_start(run):
        """Of the same attempt, which a queue had suspended."""
        errors = run.folder.attempt(1) / "errors"
        errors.mkdir(parents=True)
        for who in ("node-0", "rank-1", "rank-2"):
            (errors / f"{who}.json").write_text("{}")

    run, node = start(stay_s=60, before=tell_of_an_earlier_start)
    errors = run.folder.attempt(1) / "errors"
    assert [path.name for path in errors.iterdir()] == ["rank-2.json"], "another node's words are its own"
    os.kill(ranks_of(node)[0], signal.SIGKILL)
    eventually(lambda: ended(run))
    node.send_signal(signal.SIGTERM)  # while it still puts things away, or waits for an order
    assert node.wait(timeout=30) == 137
    assert [event.rank for event in ended(run)] == [0]


def test_ranks_do_not_outlive_a_node_that_is_killed_and_its_beats_are_cleared_away_by_the_next(start):
    _, node = start()
    family = psutil.Process(node.pid).children(recursive=True)
    node.kill()
    node.wait()
    gone, alive = psutil.wait_procs(family, timeout=30)
    assert len(gone) >= 3 and not alive
    assert list(Path("/dev/shm").glob(f"shardline-beats-{node.pid}-*"))
    with beats_folder() as own:
        assert not list(Path("/dev/shm").glob(f"shardline-beats-{node.pid}-*")) and own.is_dir()
    assert not own.exists()


def test_a_node_that_meets_nobody_tells_so(make_run):
    run = make_run(**LONG)
    node = run.popen(1, PET_NNODES="2", PET_RDZV_CONF="join_timeout=1")
    out, _ = node.communicate(timeout=60)
    assert node.returncode == 1 and "could not meet the others" in out and "Traceback" not in out, out
    (event,) = ended(run)
    assert event.what == "network" and "RendezvousTimeoutError" in event.evidence
