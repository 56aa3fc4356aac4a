import json
import subprocess
import sys
import threading
import time

import pytest

from tests.doubles.nvml import Nvml
from training.errors import EXIT_INVALID, EXIT_NODE_SUSPECT
from training.health.nvml import read_gpus
from training.health.policy import load_policy
from training.health.quick import run_checks, run_quick
from training.health.result import CheckResult, exit_code
from training.health.watch import HealthWatch

POLICY = load_policy()
XID = "NVRM: Xid (PCI:0000:17:00): {}, pid=1\n"


def test_every_check_is_made_and_none_is_healthy_without_its_device(tmp_path):
    (tmp_path / "log").touch()
    results = run_quick(POLICY, tmp_path, sys=tmp_path, devices=tmp_path, kernel_log=tmp_path / "log")
    found = {result.name: result.status for result in results}
    absent = ("gpus", "gpu_ecc", "gpu_rows", "nvlink", "neuron", "fabric", "memlock", "dns", "peers", "clock")
    assert {found[name] for name in absent} == {"not_present"}
    assert (found["kernel_log"], found["disk"]) == ("ok", "ok")
    assert len(found) == len(results) == 17 and exit_code(results) == 0


def test_checks_run_side_by_side_and_one_that_hangs_or_breaks_fails_alone():
    def slow():
        time.sleep(0.3)
        return CheckResult("slow", "ok", "")

    def hang():
        threading.Event().wait()

    def broken():
        raise ZeroDivisionError("oops")

    started = time.monotonic()
    results = run_checks({"a": slow, "hang": hang, "broken": broken, "b": slow}, 1.0, {"hang": 0.5})
    assert time.monotonic() - started < 1.0
    assert [result.status for result in results] == ["ok", "failed", "failed", "ok"]
    assert results[1].text == "no result within 0.5 s" and "ZeroDivisionError: oops" in results[2].text
    assert exit_code(results) == EXIT_NODE_SUSPECT


def test_the_host_is_the_one_that_the_pod_was_told(monkeypatch):
    monkeypatch.setenv("SHARDLINE_HOST", "node-a")
    assert CheckResult("x", "ok", "").host == "node-a"


def health(tmp_path, *arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "training.health", "--disk", tmp_path, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ".", **env},
    )


def test_the_program_for_containers_ends_as_the_machine_is(tmp_path):
    log = tmp_path / "log"
    log.write_text(XID.format(79))
    bad = health(tmp_path, SHARDLINE_KERNEL_LOG=str(log))
    assert bad.returncode == EXIT_NODE_SUSPECT
    assert "failed      kernel_log    XID 79 of the GPU at 0000:17:00" in bad.stdout
    log.write_text(XID.format(31))
    good = health(tmp_path, "--json", SHARDLINE_KERNEL_LOG=str(log))
    assert good.returncode == 0
    assert {"name", "status", "text", "measured", "advice", "host"} == set(json.loads(good.stdout)[0])
    wrong = health(tmp_path, "--peer", "nowhere")
    assert wrong.returncode == EXIT_INVALID and "give HOST:PORT" in wrong.stderr


# In flight


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """Watches a log; the alerts so far."""
    monkeypatch.setattr("training.health.watch._LOOK_S", 0.02)
    log, alerts = tmp_path / "log", []
    log.write_text(XID.format(54))
    with HealthWatch(POLICY, alerts.append, node=3, kernel_log=log, sys=tmp_path, devices=tmp_path):
        yield log, alerts


def append(log, text):
    with log.open("a") as file:
        file.write(text)


def wait_for(alerts, count):
    deadline = time.monotonic() + 10
    while len(alerts) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(alerts) == count, alerts
    return alerts


def test_an_xid_is_told_within_a_look_and_what_was_before_is_not(watch):
    log, alerts = watch
    append(log, XID.format(79))
    (alert,) = wait_for(alerts, 1)
    assert (alert.what, alert.is_fatal, alert.node) == ("xid", True, 3) and "XID 79" in alert.text
    append(log, XID.format(79) + XID.format(31))
    assert [alert.is_fatal for alert in wait_for(alerts, 2)] == [True, False]
    append(log, XID.format(31) * 2)
    assert wait_for(alerts, 3)[2].what == "health"


def test_where_there_is_no_kernel_log_nvml_tells_of_xids(tmp_path, monkeypatch):
    (tmp_path / "pynvml.py").write_text(
        "import sys\nfrom tests.doubles.nvml import Nvml\n"
        "sys.modules[__name__] = Nvml([{}, {'xids': [31, None, 79]}])\n"
    )
    (tmp_path / "nvidia0").touch()
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:.")
    alerts = []
    log = tmp_path / "none"
    with HealthWatch(POLICY, alerts.append, kernel_log=log, sys=tmp_path, devices=tmp_path):
        wait_for(alerts, 2)
    assert [alert.is_fatal for alert in alerts] == [False, True]
    assert "XID 79 of the GPU at 00000000:01:00.0" in alerts[1].text


def test_a_kill_for_memory_is_told(watch):
    log, alerts = watch
    append(log, "[9.1] Memory cgroup out of memory: Killed process 4242 (python) total-vm:9kB\n")
    (alert,) = wait_for(alerts, 1)
    assert (alert.what, alert.is_fatal) == ("health", False)
    assert alert.text == "out of memory: the kernel killed the process 4242 (python)"


def test_a_gpu_that_is_lost_while_ranks_run_is_told_once(tmp_path, monkeypatch):
    (tmp_path / "nvidia0").touch()
    readings = iter([[{"used": 70 * 2**30}, {}], [{}], [{}], [{"ecc": 2}, {}]])
    looked = threading.Semaphore(0)

    def check(limits, num_gpus, devices):
        from training.health.gpu import judge_gpus

        looked.release()
        return judge_gpus(read_gpus(Nvml(next(readings, [{}, {}]))), limits, num_gpus)

    monkeypatch.setattr("training.health.watch.check_gpus", check)
    thresholds = POLICY.thresholds.model_copy(update={"watch_every_s": 0.01})
    policy = POLICY.model_copy(update={"thresholds": thresholds})
    alerts = []
    with HealthWatch(policy, alerts.append, num_gpus=2, kernel_log=tmp_path / "log", sys=tmp_path):
        for _ in range(6):
            assert looked.acquire(timeout=10)
    assert [(alert.is_fatal, alert.text) for alert in alerts] == [
        (True, "gpus: 1 of 2 GPUs are there"),
        (False, "gpu_ecc: GPU 0: 2 uncorrected ECC errors"),
    ]


def test_a_driver_that_is_late_once_is_not_told_but_twice_is(tmp_path, monkeypatch):
    silent = [CheckResult("gpus", "failed", "NVML did not answer within 30 s")]
    fine = [CheckResult("gpus", "ok", "2 GPUs", {"num_gpus": 2})]
    answers = iter([silent, fine, silent, silent])
    told = []
    watch = HealthWatch(POLICY, told.append, kernel_log=tmp_path / "log", sys=tmp_path)
    monkeypatch.setattr("training.health.watch.check_gpus", lambda *_, **__: next(answers))
    counts = []
    for _ in range(4):
        watch._look_at_devices()
        counts.append(len(told))
    assert counts == [0, 0, 0, 1] and told[0].is_fatal


def test_following_the_log_costs_no_time_that_matters(tmp_path):
    log = tmp_path / "log"
    log.touch()
    watch = HealthWatch(POLICY, lambda alert: None, kernel_log=log, sys=tmp_path, devices=tmp_path)
    looks = 2000
    started = time.process_time()
    for _ in range(looks):
        for line in watch._log.lines():
            watch._take_line(line.text)
    # One look a second: below 0.05 % of a core.
    assert (time.process_time() - started) / looks < 5e-4
