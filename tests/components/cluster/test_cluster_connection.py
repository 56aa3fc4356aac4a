"""Which cluster and namespace are worked in, and what that cluster has."""

import datetime
from types import SimpleNamespace

import pytest
from kubernetes.config import incluster_config

from components.cluster import client, inside
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


def test_a_token_that_fits_no_header_is_told_and_not_shown(fake, tmp_path, monkeypatch):
    path = tmp_path / "config"
    path.write_text(fake.kubeconfig.read_text().replace(fake.token, "secret\\nmore"))
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(UserError, match="the kubeconfig's token has a line break") as caught:
        connect()
    assert "secret" not in str(caught.value)


def test_a_context_without_a_namespace_means_the_default_one(fake, tmp_path, monkeypatch):
    path = tmp_path / "config"
    path.write_text(fake.kubeconfig.read_text().replace('"namespace": "demo"', '"namespace": null'))
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert connect().namespace == "default"


@pytest.mark.parametrize("namespace", ["My Team", "../x", "a.b", "a" * 64])
def test_a_namespace_that_can_be_none_is_refused(fake, namespace):
    with pytest.raises(UserError, match="is not valid: it has at most 63 lower-case letters"):
        connect(namespace)


def test_a_token_that_is_renewed_while_a_run_lasts_is_read_again(tmp_path, monkeypatch):
    for name, text in (("token", "first"), ("ca.crt", "certificate"), ("namespace", "demo")):
        (tmp_path / name).write_text(text)
    for module in (client, inside):
        monkeypatch.setattr(module, "ACCOUNT", tmp_path)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(client.kubernetes.client, "ApiClient", lambda configuration: configuration)
    configuration = connect().api

    def token():
        return configuration.auth_settings()["BearerToken"]["value"]

    assert token() == "bearer first"
    (tmp_path / "token").write_text("second")
    later = SimpleNamespace(now=lambda: datetime.datetime.now() + datetime.timedelta(minutes=2))
    monkeypatch.setattr(
        incluster_config, "datetime", SimpleNamespace(datetime=later, timedelta=datetime.timedelta)
    )
    assert token() == "bearer second"


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
