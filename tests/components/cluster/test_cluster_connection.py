"""Which cluster and namespace are worked in, and what that cluster has."""

import pytest

from components.cluster.client import connect
from components.cluster.errors import ClusterRefused, ClusterUnavailable
from components.cluster.kinds import PYTORCHJOB, TRAINJOB
from components.cluster.probe import is_installed, preferred_version
from training.errors import UserError


def test_the_kubeconfig_s_context_says_where(fake):
    cluster = connect()
    assert (cluster.namespace, connect("other").namespace) == ("demo", "other")
    assert cluster.core.list_namespaced_pod("demo").items == []


@pytest.mark.parametrize("content", [None, "", "a: [", "[]", "clusters: []", "\x00"])
def test_without_a_cluster_it_is_said_what_to_do(tmp_path, monkeypatch, content):
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(UserError, match=r"^there is no cluster to talk to \(.+\): set KUBECONFIG") as caught:
        connect()
    assert "\n" not in str(caught.value)


def test_what_is_installed_is_known(fake, cluster):
    assert is_installed(cluster, PYTORCHJOB) and not is_installed(cluster, TRAINJOB)
    fake.install("trainer.kubeflow.org")
    assert is_installed(cluster, TRAINJOB)
    assert preferred_version(cluster, "trainer.kubeflow.org") == "v1alpha1"
    fake.uninstall("kubeflow.org")
    assert not is_installed(cluster, PYTORCHJOB) and preferred_version(cluster, "kubeflow.org") is None


def test_a_server_that_does_not_tell_is_no_kind_that_is_missing(fake, cluster):
    fake.fail(401, path="/apis/kubeflow.org")
    with pytest.raises(ClusterRefused, match="log in again"):
        is_installed(cluster, PYTORCHJOB)
    fake.fail(429, path="/apis/kubeflow.org", headers={"Retry-After": "60"})
    with pytest.raises(ClusterUnavailable):
        is_installed(cluster, PYTORCHJOB)
