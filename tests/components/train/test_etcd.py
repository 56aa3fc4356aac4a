"""Nodes meet through an etcd server, as `cluster.rendezvous: etcd` has them do."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from components.jobs.job import PodSettings, Scheduling, TrainingJob
from components.jobs.render.pytorchjob import render_pytorchjob

pytestmark = [
    pytest.mark.skipif(shutil.which("etcd") is None, reason="needs an etcd server (the package etcd-server)"),
    pytest.mark.skipif(importlib.util.find_spec("etcd") is None, reason="needs the extra 'etcd' of Shardline"),
]

RANK = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
number = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(number)
print("sum", int(number), "of", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture
def etcd(tmp_path):
    """The address of a server with the API of version 2, without which torchrun cannot use it."""
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    command = ["etcd", "--enable-v2", "--data-dir", str(tmp_path / "etcd"), "--listen-peer-urls", peer]
    with (tmp_path / "etcd.log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--listen-client-urls", client, "--advertise-client-urls", client], stdout=log, stderr=log
        )
    try:
        wait_for(lambda: read(f"{client}/health") is not None)
        yield client.removeprefix("http://")
    finally:
        server.terminate()
        server.wait(10)


def read(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return None


def wait_for(predicate, seconds=30):
    end = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


def agent(tmp_path, endpoint, name):
    """A node's torchrun, with what the operator makes of the job's elastic policy."""
    scheduling = Scheduling(etcd_endpoint=endpoint)
    job = TrainingJob(name, tmp_path / "runs/a", 1, 2, 1, pods=PodSettings("image"), scheduling=scheduling)
    policy = render_pytorchjob(job, "demo")["spec"]["elasticPolicy"]
    environment = {
        "PET_NNODES": f"{policy['minReplicas']}:{policy['maxReplicas']}",
        "PET_NPROC_PER_NODE": "1",
        "PET_RDZV_BACKEND": policy["rdzvBackend"],
        "PET_RDZV_ENDPOINT": f"{policy['rdzvHost']}:{policy['rdzvPort']}",
        "PET_RDZV_ID": policy["rdzvId"],
        "PET_LOCAL_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", str(program)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_the_nodes_of_an_attempt_meet_whatever_the_one_before_left_in_the_server(tmp_path, etcd):
    agents = [agent(tmp_path, etcd, "a-run-1")]
    try:
        wait_for(lambda: read(f"http://{etcd}/v2/keys/torch/elastic/rendezvous/a-run-1") is not None)
        os.killpg(agents[0].pid, signal.SIGKILL)
        agents += [agent(tmp_path, etcd, "a-run-2") for _ in range(2)]
        outputs = [each.communicate(timeout=60)[0] for each in agents[1:]]
    finally:
        for each in agents:
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()
            each.stdout.close()
    for each, output in zip(agents[1:], outputs, strict=True):
        assert each.returncode == 0, output
        assert "sum 3 of 2" in output
