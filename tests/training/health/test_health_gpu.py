import sys
import time

import pytest

from tests.doubles.nvml import Nvml, NVMLError_GpuIsLost, NVMLError_LibraryNotFound, NVMLError_NotSupported
from training.config import ClusterConfig
from training.health.gpu import check_gpus, expected_gpus, judge_gpus
from training.health.nvml import read_gpus
from training.health.policy import load_policy

LIMITS = load_policy().thresholds


def judged(*gpus, num_gpus=None):
    return {result.name: result for result in judge_gpus(read_gpus(Nvml(gpus)), LIMITS, num_gpus)}


def test_healthy_gpus_pass_every_check():
    results = judged({}, {}, num_gpus=2)
    assert {result.status for result in results.values()} == {"ok"}
    assert results["gpus"].text.startswith("2 × NVIDIA H100 80GB HBM3, driver 570.86.15")


@pytest.mark.parametrize(
    ("gpu", "name", "told"),
    [
        ({"recovery": 2}, "gpu_recovery", "GPU 1: the driver asks for a reboot"),
        ({"recovery": 7}, "gpu_recovery", "GPU 1: the driver asks for recovery action 7"),
        ({"ecc": 1}, "gpu_ecc", "GPU 1: 1 uncorrected ECC errors"),
        ({"rows": (9, 2, 1, 0)}, "gpu_rows", "GPU 1: a remapping waits for a reset"),
        ({"rows": (9, 2, 0, 1)}, "gpu_rows", "GPU 1: a row could not be remapped"),
        ({"used": 513 * 2**20}, "gpu_memory", "GPU 1: 513 MiB in use, at most 512 expected"),
        ({"throttle": 0x8 | 0x40 | 0x4}, "gpu_throttle", "GPU 1: hardware slowdown, too hot"),
        ({"throttle": 0x80}, "gpu_throttle", "GPU 1: power brake"),
        ({"links": [1] * 17 + [0]}, "nvlink", "GPU 1: links 17 are inactive"),
        ({"ecc": NVMLError_GpuIsLost()}, "gpus", "GPU 1 does not answer (GpuIsLost)"),
    ],
)
def test_a_gpu_that_falls_short_fails_one_check_and_says_what_to_do(gpu, name, told):
    results = judged({}, gpu)
    assert [n for n, result in results.items() if result.status == "failed"] == [name]
    assert results[name].text == told and results[name].advice


@pytest.mark.parametrize("gpu", [{"used": 512 * 2**20}, {"rows": (9, 2, 0, 0)}, {"throttle": 0x4}])
def test_what_is_within_the_limits_passes(gpu):
    assert {result.status for result in judged(gpu).values()} == {"ok"}


def test_a_gpu_that_is_missing_fails():
    assert judged({}, num_gpus=2)["gpus"].text == "1 of 2 GPUs are there"


def test_what_a_gpu_does_not_tell_is_not_called_healthy():
    silent = NVMLError_NotSupported()
    results = judged({"recovery": None, "ecc": silent, "rows": silent, "links": []})
    for name in ("gpu_recovery", "gpu_ecc", "gpu_rows", "nvlink"):
        assert results[name].status == "not_present"


def test_a_card_without_a_bridge_has_no_nvlink_that_could_fail():
    assert judged({"links": [0] * 18})["nvlink"].status == "not_present"
    assert judged({"links": [0] * 18}, {})["nvlink"].status == "failed"


def test_without_a_gpu_nothing_is_healthy(tmp_path):
    for results in (
        check_gpus(LIMITS, devices=tmp_path),
        judge_gpus(read_gpus(Nvml([], init=NVMLError_LibraryNotFound())), LIMITS),
        judge_gpus(read_gpus(Nvml([])), LIMITS),
    ):
        assert {result.status for result in results} == {"not_present"}
        assert len({result.name for result in results}) == 7


def test_gpus_that_have_to_be_there_and_are_not_fail():
    reading = read_gpus(Nvml([], init=NVMLError_LibraryNotFound()))
    assert judge_gpus(reading, LIMITS, 8)[0].status == "failed"
    assert judge_gpus(reading, LIMITS, has_driver=True)[0].status == "failed"
    dark = judge_gpus(read_gpus(Nvml([])), LIMITS, has_driver=True)
    assert dark[0].status == "failed" and "device files" in dark[0].text
    assert {result.status for result in dark[1:]} == {"not_present"} and len(dark) == 7
    unread = {"error": "no pynvml", "driver": None, "gpus": []}
    assert judge_gpus(unread, LIMITS, has_driver=True)[0].status == "warning"
    assert judge_gpus(unread, LIMITS, 8)[0].status == "failed"


def test_how_many_gpus_a_node_has_to_have():
    assert expected_gpus(ClusterConfig()) is None
    assert expected_gpus(ClusterConfig(gpus_per_node=0)) is None
    assert expected_gpus(ClusterConfig(gpus_per_node=8)) == 8
    assert expected_gpus(ClusterConfig(), {"nvidia.com/gpu": "4"}) == 4
    assert expected_gpus(ClusterConfig(launcher="local", gpus_per_node=8)) is None
    # Parts of a GPU are counted by NVML as none, and those of other makers not at all.
    assert expected_gpus(ClusterConfig(gpu_resource="nvidia.com/mig-1g.10gb", gpus_per_node=2)) is None


def test_a_driver_that_hangs_is_given_up_in_time():
    started = time.monotonic()
    limits = LIMITS.model_copy(update={"driver_timeout_s": 0.3})
    results = check_gpus(limits, 1, probe=["sleep", "60"])
    assert time.monotonic() - started < 5
    assert results[0].text == "NVML did not answer within 0.3 s" and results[0].status == "failed"


def test_a_reader_that_dies_has_found_no_healthy_gpu():
    results = check_gpus(LIMITS, 1, probe=[sys.executable, "-c", "raise SystemExit('broken')"])
    assert results[0].status == "failed" and "exit code 1: broken" in results[0].text


def test_the_reading_comes_from_a_process_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "pynvml.py").write_text(
        "import sys\nfrom tests.doubles.nvml import Nvml\nsys.modules[__name__] = Nvml([{}, {'ecc': 3}])\n"
    )
    (tmp_path / "nvidia0").touch()
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:.")
    results = {result.name: result for result in check_gpus(LIMITS, 2, devices=tmp_path)}
    assert results["gpus"].status == "ok" and results["gpu_ecc"].measured == {"ecc_uncorrected": {0: 0, 1: 3}}


def test_memory_of_a_process_that_was_just_killed_is_waited_for(tmp_path):
    import json

    full, empty = (json.dumps(read_gpus(Nvml([{"used": used}]))) for used in (2**30, 0))
    script = f"""
from pathlib import Path
seen = Path({str(tmp_path / "seen")!r})
print({empty!r} if seen.exists() else {full!r})
seen.touch()
"""
    limits = LIMITS.model_copy(update={"leftover_wait_s": 0.2})
    results = {r.name: r.status for r in check_gpus(limits, 1, probe=[sys.executable, "-S", "-c", script])}
    assert results["gpu_memory"] == "ok"
