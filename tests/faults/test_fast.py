"""The rows of the matrix that take seconds and no privileges, and the harness itself."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from components.cluster.job_state import Phase
from components.jobs.job import PodSettings, TrainingJob
from tests.faults import table
from tests.faults.disks import freeze, loop_disk, small_disk, thaw
from tests.faults.hosts import Hosts, agent
from tests.faults.judge import Outcome, judge
from tests.faults.launcher import HostLauncher
from tests.faults.link import slow_down
from tests.faults.marks import own_mark
from tests.faults.matrix import ROWS, run_row
from tests.faults.needs import missing
from tests.faults.rows import Row
from tests.faults.suite import Suite
from tests.faults.torchrun import TorchrunJob
from tests.faults.world import EVERY, STEPS, Result
from training.events import Incident, TrainStep

FAST = ["1"]


def needs(need):
    return pytest.mark.skipif(missing(need) is not None, reason=missing(need) or "")


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    return Suite(tmp_path_factory.mktemp("faults"), plain=True, has_torchrun=False)


@pytest.mark.parametrize("key", FAST)
def test_a_fault_is_survived_by_its_rules(suite, key):
    outcome = run_row(ROWS[key], suite)
    assert isinstance(outcome, Outcome)
    # How long it took is for `make faults`: other tests run beside this one.
    assert not [problem for problem in outcome.problems if not problem.startswith("recovery took")], outcome


def test_the_matrix_is_whole():
    assert list(ROWS) == [*map(str, range(1, 24)), "storm"]


def eventually(condition, what, timeout_s=20):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def sleeper(host, folder, seconds=60):
    state = folder / "state.json"
    agent(host, state, dict(os.environ), folder / "log", ["sleep", str(seconds)])
    eventually(state.exists, "the agent wrote nothing")
    return state


def test_an_agent_tells_how_its_command_ended(tmp_path):
    with Hosts(tmp_path / "hosts", ["a", "b"], plain=True) as hosts:
        state = sleeper(hosts["a"], tmp_path)
        assert len(hosts["a"].processes()) == 2 and not hosts["b"].processes()
        os.kill(json.loads(state.read_text())["pid"], signal.SIGTERM)
        eventually(lambda: "exit_code" in json.loads(state.read_text()), "its end is not told")
        assert json.loads(state.read_text())["exit_code"] == 143
        eventually(lambda: not hosts["a"].processes(), "the agent stays")


def test_a_host_that_is_lost_tells_nothing(tmp_path):
    with Hosts(tmp_path / "hosts", ["a"], plain=True) as hosts:
        state = sleeper(hosts["a"], tmp_path)
        hosts["a"].lose()
        eventually(lambda: not hosts["a"].processes(), "something lives")
        assert "exit_code" not in json.loads(state.read_text()) and not hosts["a"].is_up


def a_job(tmp_path, name="run-1", nodes=2, excluded=()):
    folder = tmp_path / "store" / "runs" / "run"
    return TrainingJob(name, folder, 1, nodes, 1, pods=PodSettings("image", excluded_hosts=excluded, grace_s=2))


@pytest.fixture
def nodes_that_sleep(monkeypatch):
    """In place of nodes."""

    def start(host, state, env, log, command):
        return agent(host, state, {**env, "COMMAND": " ".join(command)}, log, ["sleep", "60"])

    monkeypatch.setattr("tests.faults.launcher.agent", start)


def test_a_job_is_placed_on_free_hosts_made_once_and_stopped(tmp_path, nodes_that_sleep):
    with Hosts(tmp_path / "hosts", ["a", "b", "c"], plain=True) as hosts:
        first = HostLauncher(hosts.folder)
        first.submit(a_job(tmp_path, excluded=("b",)))
        assert first.hosts() == {"0": "a", "1": "c"} and first.poll() is Phase.RUNNING
        again = HostLauncher(hosts.folder)
        again.submit(a_job(tmp_path))
        assert again.hosts() == first.hosts() and len((hosts.folder / "made").read_text().splitlines()) == 1
        assert again.phase("run-1") is Phase.RUNNING and again.phase("run-2") is Phase.GONE
        eventually(lambda: again._state(0) and again._state(1), "the nodes do not start")
        again.stop()
        assert first.poll() is Phase.FAILED and first.ending().exit_code == 143
        hosts["a"].lose()
        waiting = HostLauncher(hosts.folder)
        waiting.submit(a_job(tmp_path, "run-2", nodes=3))
        assert waiting.poll() is Phase.STARTING and waiting.lacks_machines()


@needs("namespaces")
def test_hosts_reach_each_other_until_one_is_cut_off(tmp_path):
    with Hosts(tmp_path / "hosts", ["a", "b"]) as hosts:
        ping = hosts["a"].inside([sys.executable, "-S", "-c", CONNECT, hosts["b"].address])
        server = subprocess.Popen(
            hosts["b"].inside([sys.executable, "-S", "-c", SERVE]), stdout=subprocess.PIPE, text=True
        )
        assert server.stdout.readline() == "ready\n"
        assert subprocess.run(ping).returncode == 0
        link = slow_down(hosts["b"], delay_s=0.15, loss=0.0)
        started = time.monotonic()
        assert subprocess.run(ping).returncode == 0
        assert time.monotonic() - started > 0.15
        if missing("firewall") is None:
            hosts["b"].cut_off()
            assert subprocess.run(ping).returncode != 0
        for process in filter(None, (server, link)):
            process.kill()
            process.wait()


SERVE = """
import socket
server = socket.create_server(("", 5000))
print("ready", flush=True)
while True:
    server.accept()[0].close()
"""

CONNECT = """
import socket, sys
socket.create_connection((sys.argv[1], 5000), timeout=1).recv(1)
"""


@needs("cgroups")
def test_a_rank_gets_no_more_than_its_share_and_dies_of_too_much_memory(tmp_path):
    with Hosts(tmp_path / "hosts", ["a"]) as hosts:
        group = hosts["a"].cgroup("rank")
        group.limit_cpu(0.2)
        group.limit_memory(64 * 2**20)
        busy = "import time, os; t = time.time()\nwhile time.time() < t + 0.6: pass\nprint(time.process_time())"
        hungry = "b'x' * 2**27"
        run = {
            code: subprocess.run(
                [sys.executable, "-S", "-c", code],
                preexec_fn=lambda: group.add(os.getpid()),
                capture_output=True,
                text=True,
            )
            for code in (busy, hungry)
        }
        assert float(run[busy].stdout) < 0.4
        assert run[hungry].returncode == -signal.SIGKILL


@needs("mounts")
def test_small_disks_fill_up_and_freeze():
    with small_disk(1) as disk:
        with pytest.raises(OSError, match="No space left"):
            (disk / "file").write_bytes(bytes(2**21))
        assert own_mark() in str(disk)
    with loop_disk(16) as disk:
        freeze(disk)
        writer = subprocess.Popen(["sh", "-c", f"echo 1 > {disk}/file"])
        time.sleep(0.2)
        assert writer.poll() is None
        thaw(disk)
        assert writer.wait(5) == 0


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.faults.hosts import Hosts, agent
folder = Path(sys.argv[1])
hosts = Hosts(folder / "hosts", ["a"])
hosts.__enter__()
hosts["a"].cgroup("rank")
agent(hosts["a"], folder / "state.json", dict(os.environ), folder / "log", ["sleep", "60"])
while not (folder / "state.json").exists():
    pass
print(hosts.mark, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@needs("namespaces")
@needs("cgroups")
def test_what_a_killed_suite_left_is_swept(tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True)
    mark = killed.stdout.strip()
    assert killed.returncode == -signal.SIGKILL and mark.startswith("slf-"), killed.stderr
    state = json.loads((tmp_path / "state.json").read_text())
    with Hosts(tmp_path / "mine", ["a"]):
        assert not list(Path("/run/netns").glob(f"{mark}*"))
        assert not list(Path("/sys/fs/cgroup").glob(f"*/{mark}*"))
        eventually(lambda: not psutil.pid_exists(state["pid"]), "its node lives")
        assert list(Path("/run/netns").glob(f"{own_mark()}*")), "a living suite keeps what it has"


def a_step(number, attempt=1, loss=None, at=None):
    return TrainStep(
        time=number + attempt / 10 if at is None else at,
        source="rank-0",
        attempt=attempt,
        step=number,
        num_steps=STEPS,
        loss=float(number) if loss is None else loss,
        grad_norm=1.0,
        learning_rate=1e-3,
        num_tokens=10,
        num_supervised=5,
        seconds=0.1,
        memory_gib=0.1,
    )


QUIET = Result("bytes", {number: a_step(number) for number in range(1, STEPS + 1)}, [], 4.0)


class Past:
    """A trial that is over: an attempt of seven steps, and one that went on from the checkpoint of the fifth."""

    def __init__(self, folder, incidents=("signal",), redone=6, losses=None, weights="bytes"):
        self.folder = folder
        self._steps = [a_step(number, at=number) for number in range(1, 8)]
        again = range(redone, STEPS + 1)
        self._steps += [a_step(n, 2, loss=(losses or {}).get(n), at=10 + n) for n in again]
        self._incidents = [Incident(what=what) for what in incidents]
        self.result = Result(weights, {n: a_step(n) for n in range(1, STEPS + 1)}, [max(0, 8 - redone)], 4.0)
        self.result.steps.update({n: a_step(n, 2, loss=(losses or {}).get(n)) for n in again})

    def steps(self):
        return self._steps

    def events(self, kind):
        return self._incidents if kind == "incident" else []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"incidents": ()}, "not one of class signal"),
        ({"incidents": ("signal", "network")}, "not one of class signal"),
        ({"incidents": ("hang",)}, "not one of class signal"),
        ({"redone": 1}, "7 steps were lost"),
        ({"losses": {9: 0.5}}, "step 9 saw other samples"),
        ({"weights": "others"}, "the final weights differ"),
        ({"weights": ""}, "the final weights differ"),
    ],
)
def test_the_common_rules(tmp_path, monkeypatch, change, problem):
    past = Past(tmp_path, **change)
    monkeypatch.setattr("tests.faults.judge.result_of", lambda folder: past.result)
    outcome = judge(past, QUIET, 7.5, what="signal")
    assert [problem in each for each in outcome.problems] == [True] * bool(problem)
    assert outcome.recovery_s == 10 + change.get("redone", 6) - 7.5
    slow = judge(past, QUIET, 7.5, what="signal", limit_s=1)
    assert any("may take 1.0 s" in each for each in slow.problems)


def test_the_table_says_what_falls_short(tmp_path):
    page = tmp_path / "faults.md"
    page.write_text("# Faults\n\nBy hand.\n\n" + table._BEGIN + "\n\nold\n")
    row = Row("1", "kill -9 a rank", "in place", lambda suite: Outcome())
    good = Outcome(2, True, "signal", 2.0, 8.0)
    bad = Outcome(problems=["the final weights differ\nand more"], torchrun_s="no reaction in 60 s")
    table.write_page(
        {"1": (row, good), "5": (row, bad), "9": (row, "cgroups need root")}, {"1 × 2 ranks": 4.0}, page
    )
    text = page.read_text()
    assert text.startswith("# Faults\n\nBy hand.\n") and "old" not in text
    assert "| ok | 1 | kill -9 a rank | 2 | yes | signal | 2.0 | 8.0 | 0.25 | in place |" in text
    assert "no reaction in 60 s" in text and "- 5: " not in text and "- 1: the final weights differ\n" in text
    assert "cgroups need root" in text and f"K = {EVERY} steps" in " ".join(text.split())
    assert "the final weights differ" in table.line(row, bad) and table.line(row, good).startswith("ok")


def test_a_row_that_is_measured_again_takes_the_place_of_the_one_before(tmp_path):
    page = tmp_path / "faults.md"
    page.write_text("# Faults\n\n" + table._BEGIN + "\n")
    row = {key: Row(key, f"fault {key}", "", lambda suite: Outcome()) for key in ("1", "11")}
    bad = Outcome(problems=["it is late"])
    table.write_page({key: (each, bad) for key, each in row.items()}, {}, page)
    for outcome, left in ((Outcome(2, True, "signal", 2.0), ["11"]), (bad, ["11", "1"])):
        table.write_again({"1": (row["1"], outcome)}, page)
        text = page.read_text()
        assert [line[2:].partition(":")[0] for line in text.splitlines() if line.startswith("- ")] == left
        assert text.count("| 1 | fault 1 |") == text.count("| 11 | fault 11 |") == 1
        assert text.count("Measured again: row 1 by itself") == 1 and text.count(table._SHORT) == 1
    table.write_again({key: (each, Outcome()) for key, each in row.items()}, page)
    assert table._SHORT not in page.read_text() and "| ok | 11 | fault 11 |" in page.read_text()
    with pytest.raises(SystemExit, match="no row 7: run all of them first"):
        table.write_again({"7": (row["1"], bad)}, page)


class Plain(TorchrunJob):
    """Of torchrun, only what it has written."""

    def __init__(self, folder, lines):
        self.folder, self.hosts, self._lines = folder, [], lines

    def steps(self):
        return self._lines


def test_torchrun_s_time_is_until_a_new_process_steps(tmp_path):
    now = time.time()
    lines = [{"step": 7, "time": now, "pid": 1}]

    def fault(job):
        job._lines = [
            *lines,
            {"step": 8, "time": now + 1, "pid": 1},
            {"step": 6, "time": time.time() + 9, "pid": 2},
        ]

    assert Plain(tmp_path, lines).recovery_s(fault, after_step=7, within_s=1) == pytest.approx(9, abs=0.5)
    assert Plain(tmp_path, lines).recovery_s(lambda job: None, after_step=7, within_s=0.1) is None
