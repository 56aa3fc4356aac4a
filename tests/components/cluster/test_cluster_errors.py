"""What a server answers becomes one sentence that says what to do."""

import itertools
import json
import socket
import threading
import time
from pathlib import Path

import kubernetes
import pytest
import urllib3
from kubernetes.client import ApiException

from components.cluster import client
from components.cluster.client import Cluster, patiently
from components.cluster.errors import ClusterRefused, ClusterUnavailable, api_errors

RECORDINGS = Path(__file__).parents[2] / "doubles/recordings/api-errors"
DOING = "create the PyTorchJob 'job' in the namespace 'demo'"

REMEDIES = {
    "400-bad-field-selector": "correct the setting",
    "400-bad-label-selector": "correct the setting",
    "400-bad-pod-field-selector": "correct the setting",
    "400-invalid-json": "correct the setting",
    "400-namespace-mismatch": "correct the setting",
    "400-unknown-field-strict": "upgrade the operator",
    "401-bad-token": "log in again",
    "403-no-token": "bind the role in deploy/kubernetes/base",
    "403-rbac-create": "bind the role in deploy/kubernetes/base",
    "403-rbac-get": "bind the role in deploy/kubernetes/base",
    "403-rbac-get-missing": "bind the role in deploy/kubernetes/base",
    "403-rbac-kind-missing": "bind the role in deploy/kubernetes/base",
    "403-rbac-list-pods": "bind the role in deploy/kubernetes/base",
    "403-rbac-log": "bind the role in deploy/kubernetes/base",
    "403-rbac-patch-as-launcher": "bind the role in deploy/kubernetes/base",
    "403-rbac-watch": "bind the role in deploy/kubernetes/base",
    "404-after-dryrun": "check the name and the namespace",
    "404-delete-missing": "check the name and the namespace",
    "404-discovery-group-missing": "install the Kubeflow Training Operator",
    "404-group-missing": "install the Kubeflow Training Operator",
    "404-group-missing-post": "install the Kubeflow Training Operator",
    "404-job-missing": "check the name and the namespace",
    "404-kind-missing": "install the Kubeflow Training Operator",
    "404-namespace-missing": "check the name and the namespace",
    "404-pod-missing": "check the name and the namespace",
    "404-version-missing": "install the Kubeflow Training Operator",
    "409-already-exists": "choose another name",
    "409-conflict-on-put": "try again shortly",
    "415-strategic-merge": "upgrade the operator",
    "415-wrong-content-type": "upgrade the operator",
    "422-bad-label": "correct the setting",
    "422-bad-name": "correct the setting",
    "422-bad-quantity": "correct the setting",
    "422-missing-required": "correct the setting",
    "422-nproc-int": "correct the setting",
    "422-several-causes": "correct the setting",
    "422-wrong-kind": "correct the setting",
    "422-wrong-type": "correct the setting",
    "500-patch-while-webhook-unreachable": "the training operator is not running",
    "500-webhook-unreachable": "the training operator is not running",
    "dryrun-webhook": "change what it names",
    "webhook-container-name": "change what it names",
    "webhook-elastic-without-worker": "change what it names",
    "webhook-name-starts-with-digit": "change what it names",
    "webhook-name-with-dot": "change what it names",
    "webhook-no-image": "change what it names",
    "webhook-replica-type": "change what it names",
    "webhook-two-masters": "change what it names",
}


def refusals():
    """Name and answer of every recorded exchange that the server refused."""
    for path in sorted(RECORDINGS.glob("*.json")):
        exchange = json.loads(path.read_text())
        answer = exchange.get("response", {}) if isinstance(exchange, dict) else {}
        if isinstance(answer.get("status"), int) and answer["status"] >= 400:
            yield pytest.param(path.stem, answer, id=path.stem)


def api_exception(status, body="", reason="", headers=None):
    error = ApiException(status=status, reason=reason)
    error.body = body if isinstance(body, str) else json.dumps(body)
    error.headers = headers or {}
    return error


def translated(error):
    with pytest.raises((ClusterRefused, ClusterUnavailable)) as caught, api_errors(DOING):
        raise error
    return caught.value


@pytest.mark.parametrize(("name", "answer"), refusals())
def test_every_recorded_refusal_becomes_one_sentence_with_a_remedy(name, answer):
    error = translated(api_exception(answer["status"], answer["body"], answer["reason"], answer["headers"]))
    sentence = str(error)
    assert "\n" not in sentence and sentence.startswith(f"cannot {DOING}: ")
    assert REMEDIES[name] in sentence
    assert "<nil>" not in sentence
    body = answer["body"]
    said = [body["message"]] if isinstance(body, dict) else []
    if answer["status"] == 422:
        said = [f"{cause['field']}: " for cause in body["details"]["causes"] if cause["field"] != "<nil>"]
    assert all(" ".join(words.split()).rstrip(".") in sentence for words in said)
    assert isinstance(error, ClusterUnavailable if answer["status"] >= 500 else ClusterRefused)
    if isinstance(error, ClusterRefused) and isinstance(body, dict):
        assert (error.status, error.reason) == (answer["status"], body["reason"])


def test_an_answer_of_many_lines_becomes_one():
    body = {"kind": "Status", "message": "denied:\n  no team label\n  no cost centre\n", "code": 403}
    said = 'admission webhook "policy" denied the request: '
    body["message"] = said + body["message"]
    assert f"({said}denied: no team label no cost centre)" in str(translated(api_exception(403, body)))


@pytest.mark.parametrize("body", ["<html>Bad\nGateway</html>", "[1]", "", b"\xff"])
def test_a_proxy_s_answer_is_told_by_its_status(body):
    error = api_exception(502, "", "Bad Gateway")
    error.body = body
    assert "answered 502 (Bad Gateway); try again later" in str(translated(error))


def test_a_certificate_that_is_not_trusted_is_not_tried_again():
    # In the form that the client gives it.
    reason = (
        "SSLError\n[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1)"
    )
    error = translated(ApiException(status=0, reason=reason))
    assert isinstance(error, ClusterRefused)
    assert "\n" not in str(error) and "certificate-authority" in str(error)
    broken = translated(ApiException(status=0, reason="SSLError\n[SSL: UNEXPECTED_EOF_WHILE_READING] EOF"))
    assert isinstance(broken, ClusterUnavailable) and "\n" not in str(broken)


def test_what_may_pass_is_tried_again(fake, cluster):
    for status in (408, 429, 500, 502, 503, 504):
        fake.server.requests.clear()
        fake.fail(status, times=2)
        assert patiently("list pods", lambda: cluster.core.list_namespaced_pod("demo")).items == []
        assert len(fake.requests) == 3, status


def test_what_would_not_pass_is_not_tried_again(fake, cluster):
    for status in (400, 401, 403, 404, 409, 410, 415, 422):
        fake.server.requests.clear()
        fake.fail(status)
        with pytest.raises(ClusterRefused) as caught:
            patiently("list pods", lambda: cluster.core.list_namespaced_pod("demo"))
        assert caught.value.status == status and len(fake.requests) == 1


def test_a_server_is_asked_again_when_it_says(fake, cluster):
    body = {"kind": "Status", "message": "too many requests", "code": 429, "details": {"retryAfterSeconds": 1}}
    fake.fail(429, headers={"Retry-After": "1"})
    fake.fail(429, body=body)
    patiently("list pods", lambda: cluster.core.list_namespaced_pod("demo"))
    times = [request.time for request in fake.requests]
    assert len(times) == 3
    assert all(1 <= later - earlier < 1.5 for earlier, later in itertools.pairwise(times))


def test_patience_ends_with_what_was_last_said(fake, cluster):
    fake.fail(503, times=99)
    begin = time.monotonic()
    with pytest.raises(ClusterUnavailable, match=r"^cannot list pods: the API server answered 503 \(an accident"):
        patiently("list pods", lambda: cluster.core.list_namespaced_pod("demo"), patience_s=0.3)
    assert time.monotonic() - begin < 1 and 3 <= len(fake.requests) <= 8


def test_a_server_that_asks_for_more_than_there_is_patience_for_ends_it_at_once(fake, cluster):
    fake.fail(429, headers={"Retry-After": "60"})
    with pytest.raises(ClusterUnavailable) as caught:
        patiently("list pods", lambda: cluster.core.list_namespaced_pod("demo"), patience_s=5)
    assert caught.value.retry_after_s == 60 and len(fake.requests) == 1


def test_a_dropped_connection_is_tried_again(fake, cluster):
    fake.fail(0, times=2)
    assert patiently("list pods", lambda: cluster.core.list_namespaced_pod("demo")).items == []
    assert len(fake.requests) == 3


@pytest.fixture
def nobody(monkeypatch):
    """A connection to a port of this machine, where the test decides what listens."""
    monkeypatch.setattr(client, "_BACKOFF_S", (0.05,))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    configuration = kubernetes.client.Configuration(host=f"http://127.0.0.1:{listener.getsockname()[1]}")
    configuration.retries = False
    yield listener, Cluster(kubernetes.client.ApiClient(configuration), "demo", "a test")
    listener.close()


def test_a_refused_connection_is_tried_again(nobody):
    _, cluster = nobody
    tries = []

    def call():
        tries.append(1)
        return cluster.core.list_namespaced_pod("demo")

    with pytest.raises(
        ClusterUnavailable, match=r"does not answer \(NewConnectionError\); check that the cluster is"
    ):
        patiently("list pods", call, patience_s=0.2)
    assert len(tries) > 1


def test_a_silent_server_is_tried_again(nobody):
    listener, cluster = nobody
    listener.listen()
    accepted = []

    def call():
        accepted.append(1)
        return cluster.core.list_namespaced_pod("demo", _request_timeout=(1, 0.1))

    with pytest.raises(ClusterUnavailable, match="ReadTimeoutError"):
        patiently("list pods", call, patience_s=0.3)
    assert len(accepted) > 1


def test_an_answer_that_breaks_off_is_tried_again(nobody):
    listener, cluster = nobody
    listener.listen()
    begun = []

    def serve():
        for body in (b'{"items": [', b'{"items": []}'):
            connection, _ = listener.accept()
            connection.recv(4096)
            begun.append(body)
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n"
            connection.sendall(head + body)
            connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert patiently("list pods", lambda: cluster.core.list_namespaced_pod("demo")).items == []
    assert len(begun) == 2


def test_what_the_client_raises_by_itself_is_left_alone():
    with pytest.raises(KeyError), api_errors(DOING):
        raise KeyError("a mistake of ours")
    assert isinstance(translated(urllib3.exceptions.ProtocolError("broken")), ClusterUnavailable)


def test_a_server_may_not_ask_to_wait_for_ever(fake, cluster):
    fake.fail(429, headers={"Retry-After": "86400"})
    with pytest.raises(ClusterUnavailable) as caught:
        patiently("list pods", lambda: cluster.core.list_namespaced_pod("demo"), patience_s=5)
    assert caught.value.retry_after_s == 60
