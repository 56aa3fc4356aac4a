"""Samples of what a node's machine does."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from training import system_metrics
from training.events import System, read_events
from training.system_metrics import SystemMetrics, pause_s


def sampled(folder: Path) -> list[System]:
    return [event for event in read_events(folder) if isinstance(event, System)]


def test_samples_go_into_the_nodes_own_file(tmp_path: Path) -> None:
    with SystemMetrics(tmp_path / "events", "node-3", 2, disk=tmp_path, every_s=0.05):
        give_up = time.monotonic() + 20
        while len(sampled(tmp_path / "events")) < 2:
            assert time.monotonic() < give_up
            time.sleep(0.02)
    events = sampled(tmp_path / "events")
    assert {(event.source, event.attempt) for event in events} == {("node-3", 2)}
    values = events[-1].values
    assert 0 <= values["cpu_utilization_percentage"] <= 100
    assert 0 < values["system_memory_usage_percentage"] < 100
    assert values["disk_available_megabytes"] > 0
    assert values["network_receive_megabytes"] >= 0
    assert len(events[-1].model_dump_json()) < 800


def test_a_month_takes_some_thousand_lines() -> None:
    elapsed, samples, month = 0.0, 0, 30 * 86400
    while elapsed < month:
        elapsed += pause_s(elapsed, 10.0)
        samples += 1
    assert pause_s(3600, 10.0) == 10.0
    assert 3000 < samples < 6000


def test_a_disk_that_cannot_be_written_ends_only_the_samples(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "events").write_text("a file in the way")
    with SystemMetrics(tmp_path / "events", "node-0", 1, disk=tmp_path, every_s=0.01):
        time.sleep(0.2)
    assert capfd.readouterr().err == ""


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    class Unknown(Exception):
        pass

    def refuse(_: object) -> None:
        raise Unknown

    nvml = SimpleNamespace(
        NVMLError=Unknown,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=40e9, total=80e9),
        nvmlDeviceGetUtilizationRates=refuse,
        nvmlDeviceGetPowerUsage=lambda _: 350_000,
        nvmlDeviceGetEnforcedPowerLimit=lambda _: 700_000,
    )
    assert system_metrics._read_gpus(nvml, [object()]) == {
        "gpu_0_memory_usage_megabytes": 40_000,
        "gpu_0_memory_usage_percentage": 50,
        "gpu_0_power_usage_watts": 350,
        "gpu_0_power_usage_percentage": 50,
    }
