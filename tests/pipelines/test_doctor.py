import json
import os
import subprocess
import sys

import pytest

from pipelines.doctor import judge_deep
from training.errors import EXIT_INVALID, EXIT_NODE_SUSPECT
from training.health.blame import Blame, Burn
from training.health.deep_result import DeepResult


@pytest.fixture
def doctor(tmp_path):
    def run(*arguments, log=""):
        (tmp_path / "log").write_text(log)
        return subprocess.run(
            [sys.executable, "-m", "pipelines.cli", "doctor", "--disk", str(tmp_path), *arguments],
            capture_output=True,
            text=True,
            timeout=100,
            env={**os.environ, "SHARDLINE_KERNEL_LOG": str(tmp_path / "log"), "COLUMNS": "100"},
        )

    return run


def test_a_machine_without_a_gpu_is_told_that_it_has_none(doctor):
    done = doctor()
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split(None, 1)[1] for line in done.stdout.splitlines()[2:]}
    assert rows["gpus"].startswith("not present") and rows["gpu_ecc"].startswith("not present")
    assert rows["disk"].startswith("ok") and len(rows) == 17


def test_a_machine_that_fails_a_check_is_not_fit_and_told_what_to_do(doctor):
    xid = "NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.\n"
    done = doctor(log=xid)
    assert done.returncode == EXIT_NODE_SUSPECT
    assert "→ reboot the machine" in done.stdout and "not fit to train: kernel_log" in done.stdout


def test_a_policy_that_is_wrong_is_refused(doctor, tmp_path):
    (tmp_path / "policy.yaml").write_text("xids: {78: reset}")
    done = doctor("--policy", str(tmp_path / "policy.yaml"))
    assert done.returncode == EXIT_INVALID and "no rule for the XID 78; the nearest is 79" in done.stderr


@pytest.mark.slow
def test_the_deep_checks_let_the_ranks_of_this_machine_compute_the_same(doctor, tmp_path):
    (tmp_path / "policy.yaml").write_text("thresholds: {burn_s: 0.1, deep_straggler_ratio: 100}")
    done = doctor("--deep", "--json", "--policy", str(tmp_path / "policy.yaml"))
    assert done.returncode == 0, done.stderr
    deep = json.loads(done.stdout)[-1]
    assert (deep["name"], deep["status"]) == ("deep", "ok") and min(deep["measured"]["tflops"]) > 0


def test_a_device_that_computes_wrongly_fails():
    burns = (Burn(0, "vm", "cpu", ((1,),), 1.0),)
    (wrong,) = judge_deep(DeepResult(("vm",), burns, (1.0,), blames=(Blame("faulty", ("vm",), "rank 0 errs"),)))
    assert (wrong.status, wrong.text) == ("failed", "rank 0 errs")
