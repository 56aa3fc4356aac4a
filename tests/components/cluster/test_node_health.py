"""What HyperPod says of machines, asked of a cluster's double; and pods that keep away from them."""

import pytest

from components.cluster.client import connect
from components.cluster.node_health import unhealthy_hosts
from components.cluster.node_labels import HEALTH_LABEL, UNFIT, why_unfit
from components.jobs.job import PodSettings, TrainingJob
from components.jobs.render import pod
from tests.doubles.cluster import FakeCluster

DEEP = "sagemaker.amazonaws.com/deep-health-check-status"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with FakeCluster(tmp_path_factory.mktemp("cluster"), operator=False) as cluster:
        cluster.add_node("good", labels={HEALTH_LABEL: "Schedulable", DEEP: "Passed"})
        cluster.add_node("rebooting", labels={HEALTH_LABEL: "UnschedulablePendingReboot"})
        cluster.add_node("failed", labels={HEALTH_LABEL: "Schedulable", DEEP: "Failed"})
        yield cluster


@pytest.fixture
def connection(cluster, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    yield connect()
    cluster.allow_all()


def test_machines_that_hyperpod_gives_up_are_named_with_its_words(connection):
    assert unhealthy_hosts(connection, ["good", "rebooting", "failed", "node0", "gone", ""]) == {
        "rebooting": "HyperPod says it is UnschedulablePendingReboot",
        "failed": "it failed HyperPod's deep health check",
    }


def test_an_account_that_may_not_read_nodes_goes_without(cluster, connection):
    cluster.deny("get", "nodes")
    assert unhealthy_hosts(connection, ["rebooting"]) == {}


def test_a_cluster_that_does_not_answer_holds_no_decision_up(cluster, connection, monkeypatch):
    monkeypatch.setattr("components.cluster.client._BACKOFF_S", (9,))
    cluster.fail(500, times=1, path="nodes/rebooting")
    assert unhealthy_hosts(connection, ["rebooting", "failed"]).keys() == {"failed"}


@pytest.mark.parametrize(
    "labels, unfit",
    [
        ({}, False),
        ({HEALTH_LABEL: "Schedulable"}, False),
        ({DEEP: "InProgress"}, False),
        ({DEEP: "Failed"}, True),
        *[({HEALTH_LABEL: status}, True) for status in UNFIT],
    ],
)
def test_labels_in_words(labels, unfit):
    assert (why_unfit(labels) is not None) is unfit


def test_pods_are_placed_on_machines_without_the_label_and_never_on_those_that_are_given_up(cluster, tmp_path):
    pods = PodSettings("image", excluded_hosts=("good", "failed"))
    job = TrainingJob("run-1", tmp_path / "runs/run", 1, 1, 1, pods=pods)
    cluster.run_pod("first", ["sleep", "9"], affinity=pod.affinity(job))
    placed = cluster.wait(lambda: cluster.pods()[0]["spec"].get("nodeName"))
    assert placed == "node0"
    cluster.remove_node("node0")
    cluster.run_pod("second", ["sleep", "9"], affinity=pod.affinity(job))
    conditions = cluster.wait(
        lambda: [
            c for each in cluster.pods() for c in each["status"].get("conditions", []) if c["status"] == "False"
        ]
    )
    assert conditions[0]["reason"] == "Unschedulable" and "affinity" in conditions[0]["message"]
