import contextlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time

import pytest

from training.health.clock import check_clock
from training.health.disk import check_disk, judge_space
from training.health.fabric import check_fabric, check_memlock
from training.health.memory import check_memory
from training.health.network import check_dns, check_peers
from training.health.neuron import check_neuron
from training.health.policy import load_policy

LIMITS = load_policy().thresholds
QUICK = LIMITS.model_copy(update={"disk_timeout_s": 1.0, "peer_timeout_s": 0.3, "driver_timeout_s": 0.5})


def tree(root, files):
    """A folder tree, as sysfs has them."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")
    return root


def port(device, state="4: ACTIVE", phys="5: LinkUp", layer="InfiniBand", number=1):
    base = f"class/infiniband/{device}/ports/{number}"
    return {f"{base}/state": state, f"{base}/phys_state": phys, f"{base}/link_layer": layer}


# Disk


def test_a_disk_that_works_passes_and_keeps_nothing(tmp_path):
    disk, space = check_disk(LIMITS, tmp_path)
    assert (disk.status, space.status) == ("ok", "ok")
    assert 0 < disk.measured["seconds"] < 15
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_hangs_is_given_up_in_time(tmp_path):
    started = time.monotonic()
    disk, space = check_disk(QUICK, tmp_path, probe=["sh", "-c", "sleep 60"])
    assert time.monotonic() - started < 5
    assert disk.status == "failed" and "nothing was written within 1 s" in disk.text
    assert space.status == "not_present"


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("fsfreeze") is None, reason="freezing a disk takes root")
def test_a_mount_that_is_frozen_hangs_nobody(tmp_path):
    image, mount = tmp_path / "image", tmp_path / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(16 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, mount], check=False).returncode:
        pytest.skip("loop mounts are not possible here")
    try:
        subprocess.run(["fsfreeze", "-f", mount], check=True)
        try:
            started = time.monotonic()
            disk, _ = check_disk(QUICK, mount)
            assert time.monotonic() - started < 5
            assert disk.status == "failed"
        finally:
            subprocess.run(["fsfreeze", "-u", mount], check=True)
        assert check_disk(LIMITS, mount)[0].status == "ok"
    finally:
        time.sleep(0.3)  # the probe that was killed ends once the disk goes on
        subprocess.run(["umount", mount], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_a_store_that_is_full_is_no_machines_fault(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], check=False).returncode:
        pytest.skip("no disk in memory can be mounted here")
    try:
        with contextlib.suppress(OSError), (tmp_path / "data").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        disk, space = check_disk(LIMITS, tmp_path)
        assert (disk.status, disk.text) == ("warning", f"{tmp_path} is full")
        assert space.status == "not_present"
        clock = check_clock(LIMITS, tmp_path / "clocks", "node-0")
        assert clock.status == "not_present" and clock.text.endswith("No space left on device")
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_folder_that_is_not_there_or_gives_back_something_else_fails(tmp_path):
    disk, _ = check_disk(LIMITS, tmp_path / "none")
    assert disk.status == "failed" and disk.text.endswith("No such file or directory")
    told = json.dumps({"seconds": 0.1, "is_same": False, "free_bytes": 1})
    disk, _ = check_disk(LIMITS, tmp_path, probe=[sys.executable, "-S", "-c", f"print({told!r})"])
    assert disk.status == "failed" and "something else than was written" in disk.text


def test_a_slow_disk_and_a_full_one_warn(tmp_path):
    told = json.dumps({"seconds": 6.0, "is_same": True, "free_bytes": 10})
    probe = [sys.executable, "-S", "-c", f"print({told!r})"]
    disk, space = check_disk(LIMITS, tmp_path, 6, probe=probe)
    assert (disk.status, space.status) == ("warning", "warning")
    assert judge_space(LIMITS, 12, 6).status == "ok"


# Ports and locked memory


def test_active_ports_of_every_kind_pass(tmp_path):
    sys = tree(tmp_path, port("mlx5_0") | port("rdmap0s6", layer="Unspecified") | port("mlx5_1", layer="Ethernet"))
    result = check_fabric(sys)
    assert result.status == "ok" and result.measured == {"num_ports": 3, "num_down": 0}


@pytest.mark.parametrize(
    ("layer", "status"), [("InfiniBand", "failed"), ("Unspecified", "failed"), ("Ethernet", "warning")]
)
def test_a_port_that_is_down_is_named(tmp_path, layer, status):
    sys = tree(tmp_path, port("mlx5_0") | port("mlx5_3", "1: DOWN", "2: Polling", layer))
    result = check_fabric(sys)
    assert (result.status, result.text) == (status, "mlx5_3/1 is 1: DOWN (2: Polling)")


def test_ports_that_are_switched_off_and_machines_without_any(tmp_path):
    off = port("mlx5_2", "1: DOWN", "3: Disabled")
    assert check_fabric(tree(tmp_path / "a", off | port("mlx5_0"))).status == "ok"
    assert check_fabric(tree(tmp_path / "b", off)).status == "not_present"
    assert check_fabric(tmp_path / "none").status == "not_present"


def test_locked_memory_counts_only_where_something_needs_it(tmp_path):
    assert check_memlock(LIMITS, tmp_path, 65536).status == "not_present"
    sys = tree(tmp_path, port("mlx5_0"))
    assert check_memlock(LIMITS, sys, 65536).status == "warning"
    assert check_memlock(LIMITS, sys, 2**30).status == "ok"
    assert check_memlock(LIMITS, sys, resource.RLIM_INFINITY).status == "ok"


# Memory


def cgroup(tmp_path, most, now, cached, version=2):
    prefix = "" if version == 2 else "memory/"
    limit, usage = (
        ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    stat = f"inactive_file {cached}\nactive_file 0"
    return tree(tmp_path, {f"{prefix}{limit}": most, f"{prefix}{usage}": now, f"{prefix}memory.stat": stat})


@pytest.mark.parametrize("version", [1, 2])
def test_a_containers_limit_counts_and_cached_files_do_not(tmp_path, version):
    full = check_memory(LIMITS, cgroup(tmp_path / "a", 10**8, 95 * 10**6, 0, version))
    assert full.status == "warning" and full.measured == {"available_bytes": 5 * 10**6, "total_bytes": 10**8}
    assert check_memory(LIMITS, cgroup(tmp_path / "b", 10**8, 95 * 10**6, 90 * 10**6, version)).status == "ok"


def test_without_a_limit_the_machine_counts(tmp_path):
    result = check_memory(LIMITS, cgroup(tmp_path, "max", 5, 0))
    assert result.measured["total_bytes"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# Network


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield ("127.0.0.1", server.getsockname()[1])


def test_a_peer_that_answers_or_refuses_is_there(listener):
    result = check_peers(QUICK, [listener, ("127.0.0.1", 1)])
    assert result.status == "ok" and result.measured["unreachable"] == []
    assert check_peers(QUICK, []).status == "not_present"


def test_of_one_silent_link_nobody_is_to_blame_but_who_reaches_nobody_is(listener):
    away = ("2001:db8::1", 9)  # for documentation only: there is no way to it
    assert check_peers(QUICK, [away, listener]).status == "warning"
    assert check_peers(QUICK, [away]).status == "warning"
    result = check_peers(QUICK, [away, ("2001:db8::2", 9)])
    assert result.status == "failed" and result.measured["unreachable"] == ["2001:db8::1:9", "2001:db8::2:9"]


def test_names_are_resolved_and_addresses_need_not_be():
    assert check_dns([("localhost", 1)]).status == "ok"
    assert check_dns([("127.0.0.1", 1), ("::1", 1)]).status == "not_present"
    result = check_dns([("no-such-host.invalid", 1), ("localhost", 1)])
    assert result.status == "warning" and result.text == "no address is known of no-such-host.invalid"


# Clocks


def test_equal_clocks_pass_whatever_the_age_of_what_they_wrote(tmp_path):
    now = time.time()
    check_clock(LIMITS, tmp_path, "node-0", now - 3600)
    assert check_clock(LIMITS, tmp_path, "node-1", now).status == "ok"
    assert check_clock(LIMITS, None).status == "not_present"


@pytest.mark.parametrize("skew", [-60.0, 60.0])
def test_of_two_clocks_that_differ_one_node_sees_it(tmp_path, skew):
    now = time.time()
    check_clock(LIMITS, tmp_path, "node-0", now)
    second = check_clock(LIMITS, tmp_path, "node-1", now + skew)
    first = check_clock(LIMITS, tmp_path, "node-0", now)
    seen = second if skew < 0 else first
    assert seen.status == "warning" and seen.measured["skew_s"] == pytest.approx(60, abs=2)


def test_a_store_whose_clock_is_wrong_is_told(tmp_path):
    result = check_clock(LIMITS, tmp_path, "node-0", time.time() - 30)
    assert result.status == "warning" and "the store" in result.text


def test_a_stamp_that_is_half_written_is_passed_over(tmp_path):
    for name, content in {"node-1": "17", "node-2": "", "node-3": "soon vm", "node-4": "nan vm"}.items():
        (tmp_path / name).write_text(content)
    assert check_clock(LIMITS, tmp_path, "node-0").status == "ok"


# Neuron


def neuron(tmp_path, num=2, ecc=0, hw=0):
    devices = tmp_path / "dev"
    devices.mkdir(parents=True)
    files = {}
    for i in range(num):
        (devices / f"neuron{i}").touch()
        base = f"devices/virtual/neuron_device/neuron{i}"
        files[f"{base}/stats/hardware/mem_ecc_uncorrected"] = ecc
        files[f"{base}/stats/hardware/sram_ecc_uncorrected"] = 0
        files[f"{base}/neuron_core0/stats/status/hw_error/total"] = hw
    return {"sys": tree(tmp_path / "sys", files), "devices": devices}


def lists(num):
    return [sys.executable, "-S", "-c", f"print([{{}}] * {num})"]


def test_neuron_devices_without_errors_pass(tmp_path):
    result = check_neuron(LIMITS, **neuron(tmp_path), tool=lists(2))
    assert result.status == "ok" and result.measured == {"num_devices": 2, "num_listed": 2, "errors": {}}


@pytest.mark.parametrize(
    ("changes", "tool", "told"),
    [
        ({"ecc": 2}, lists(2), "neuron0: 2 hardware errors; neuron1: 2 hardware errors"),
        ({"hw": 1}, lists(2), "neuron0: 1 hardware errors"),
        ({}, lists(1), "neuron-ls lists 1 of 2 devices"),
        ({}, [sys.executable, "-S", "-c", "raise SystemExit('no driver')"], "exit code 1: no driver"),
        ({}, ["sleep", "60"], "neuron-ls did not answer within 0.5 s"),
    ],
)
def test_neuron_devices_that_fall_short_fail(tmp_path, changes, tool, told):
    result = check_neuron(QUICK, **neuron(tmp_path, **changes), tool=tool)
    assert result.status == "failed" and told in result.text


def test_neuron_without_device_or_tool_is_not_called_healthy(tmp_path):
    assert check_neuron(LIMITS, sys=tmp_path, devices=tmp_path).status == "not_present"
    assert check_neuron(LIMITS, **neuron(tmp_path), tool=["no-such-tool"]).status == "warning"
