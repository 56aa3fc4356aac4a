"""A cluster's double, and a connection to it."""

import pytest

from components.cluster import client
from components.cluster.client import connect
from tests.doubles.cluster import FakeCluster


@pytest.fixture
def fake(tmp_path, monkeypatch):
    with FakeCluster(tmp_path / "cluster") as fake:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig))
        yield fake


@pytest.fixture
def cluster(fake, monkeypatch):
    monkeypatch.setattr(client, "_BACKOFF_S", (0.05,))
    return connect()


@pytest.fixture
def manifest():
    """A job of one pod that waits to be told to stop."""

    def make(name="job", command="trap 'exit 143' TERM; sleep 60 & wait $!", **metadata):
        container = {"name": "pytorch", "image": "registry.local/image:1", "command": ["sh", "-c", command]}
        replica = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}
        return {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": name, "labels": {"shardline.dev/run": "run"}, **metadata},
            "spec": {
                "nprocPerNode": "1",
                "elasticPolicy": {"minReplicas": 1, "maxReplicas": 1, "rdzvBackend": "c10d"},
                "pytorchReplicaSpecs": {"Worker": replica},
            },
        }

    return make
