"""A cluster's double, and runs whose pods do what a test says in place of the training."""

import pytest

from tests.doubles.cluster import FakeCluster


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    with FakeCluster(tmp_path / "cluster") as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        cluster.add_claim("store")
        yield cluster


@pytest.fixture
def pods_run(tmp_path, make_run):
    """Make a run of two nodes whose pods run a script; it sees $3, the run's folder, and SHARDLINE_NODE."""

    def make(script, name="run", resilience=None, **settings):
        bin_folder = tmp_path / "bin"
        bin_folder.mkdir(exist_ok=True)
        python = bin_folder / "python"
        python.write_text(f"#!/bin/bash\n{script}\n")
        python.chmod(0o755)
        return make_run(
            name,
            parallel={"num_nodes": 2, "procs_per_node": 1},
            resilience=resilience or {},
            cluster={
                "launcher": "pytorchjob",
                "store_claim": "store",
                "gpus_per_node": 0,
                "grace_s": 30,
                **settings,
                "env": {"PATH": f"{bin_folder}:/usr/bin:/bin", **settings.get("env", {})},
            },
        )

    return make
