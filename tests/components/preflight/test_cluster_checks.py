"""Preflight's look at a cluster, on the double."""

import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from components.preflight import cluster as checks_of_clusters
from components.preflight import rendezvous
from components.preflight.checks import run_checks
from components.preflight.cluster import cluster_checks
from components.preflight.nodes import quantity
from components.preflight.prepare import _use_claim
from tests.doubles.cluster import FakeCluster
from tests.doubles.cluster.resources import NODES
from tests.doubles.models import save_tiny_model
from training.errors import UserError
from training.resolve import resolve


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with FakeCluster(tmp_path_factory.mktemp("cluster"), operator=False) as cluster:
        cluster.add_claim("store")
        cluster.add_secret("hugging-face", {"token": "hf-value", "other": "x"})
        cluster.add_secret("regcred", {".dockerconfigjson": "{}"})
        yield cluster


@pytest.fixture
def cluster(shared, monkeypatch):
    """A cluster that has everything; what a test denies or breaks is mended after it."""
    monkeypatch.setenv("KUBECONFIG", str(shared.kubeconfig))
    yield shared
    shared.allow_all()


@pytest.fixture
def own_cluster(tmp_path, monkeypatch):
    """A cluster that the test changes for good."""
    with FakeCluster(tmp_path / "cluster", operator=False) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        cluster.add_claim("store")
        yield cluster


def config(cluster=None, **sections):
    cluster = {"launcher": "pytorchjob", "store_claim": "store", "gpus_per_node": 0, **(cluster or {})}
    sections = {"parallel": {"procs_per_node": 1}, **sections}
    return resolve({"model": {"name": "org/model"}, "data": {"train": "org/data"}, "cluster": cluster, **sections})


def found(subject, cluster=None, **sections):
    """What a check says; a problem in its own words."""
    finding = cluster_checks(config(cluster, **sections))[subject]()
    assert finding.subject == subject
    assert finding.ok
    return finding.text


def problem(subject, cluster=None, **sections):
    with pytest.raises(UserError) as caught:
        cluster_checks(config(cluster, **sections))[subject]()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Operator


def test_an_operator_that_is_there_is_told_with_its_version(cluster):
    assert found("operator") == "PyTorchJob kubeflow.org/v1"


def test_an_operator_that_is_not_there_is_told_with_what_to_do(cluster):
    told = problem("operator", {"launcher": "trainjob"})
    assert "the cluster has no TrainJob (trainer.kubeflow.org/v1alpha1)" in told
    assert "have its operator installed" in told
    assert "cluster.launcher" in told


def test_each_kind_of_job_is_looked_for_by_itself(own_cluster):
    own_cluster.uninstall("kubeflow.org")
    own_cluster.install("trainer.kubeflow.org")
    assert found("operator", {"launcher": "trainjob"}) == "TrainJob trainer.kubeflow.org/v1alpha1"
    assert "the cluster has no PyTorchJob (kubeflow.org/v1)" in problem("operator")


# Rights


def test_rights_that_suffice_are_told_with_the_namespace(cluster):
    assert found("rights") == "jobs, pods, logs and events in the namespace 'demo'"


def test_a_namespace_that_is_configured_is_the_one_that_is_asked_about(cluster):
    assert "in the namespace 'other'" in found("rights", {"namespace": "other"})


@pytest.mark.parametrize(
    "verb, resource",
    [
        ("create", "pytorchjobs"),
        ("delete", "pytorchjobs"),
        ("patch", "pytorchjobs"),
        ("watch", "pods"),
        ("get", "pods/log"),
        ("list", "events"),
    ],
)
def test_a_right_that_is_missing_is_named_with_what_to_do(cluster, verb, resource):
    cluster.deny(verb, resource)
    told = problem("rights")
    assert f"may not {verb} {resource}: bind the role in deploy/kubernetes" in told
    assert "in the namespace 'demo'" in told


def test_all_rights_that_are_missing_are_named_at_once(cluster):
    cluster.allow_only(("get", "pods"), ("list", "pods"), ("get", "pytorchjobs"))
    told = problem("rights")
    for missing in ("create pytorchjobs", "delete pytorchjobs", "watch pods", "get pods/log", "list events"):
        assert missing in told
    assert "get pods," not in told


# Claim


def test_a_claim_that_all_machines_can_use_is_told(cluster):
    assert found("claim") == "'store', ReadWriteMany, Bound"


def test_without_a_claim_the_volumes_of_the_task_are_left_to_the_task(cluster):
    assert found("claim", {"store_claim": None}) == "the volumes of the train task"


def test_a_claim_that_does_not_exist_is_told_with_what_to_do(cluster):
    told = problem("claim", {"store_claim": "no-such"})
    assert told.startswith("the claim 'no-such' in the namespace 'demo' does not exist: create it")
    assert "store_claim" in told


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteOncePod", "ReadOnlyMany"])
def test_a_claim_for_one_machine_is_refused(own_cluster, mode):
    own_cluster.add_node("another")
    own_cluster.add_claim("narrow", modes=(mode,))
    told = problem("claim", {"store_claim": "narrow"})
    assert f"the claim 'narrow' in the namespace 'demo' is {mode}" in told
    assert "ReadWriteMany" in told


def test_a_claim_for_one_machine_will_do_where_there_is_one(own_cluster):
    own_cluster.add_claim("narrow", modes=("ReadWriteOnce",))
    own_cluster.add_claim("pod", modes=("ReadWriteOncePod",))
    assert found("claim", {"store_claim": "narrow"}) == (
        "'narrow', ReadWriteOnce, which is enough on the cluster's only node"
    )
    assert "is ReadWriteOncePod" in problem("claim", {"store_claim": "pod"}), "the steps are other pods"
    own_cluster.deny("list", "nodes")
    assert "ReadWriteMany" in problem("claim", {"store_claim": "narrow"}), "it cannot be known"


def test_a_claim_that_lost_its_volume_is_refused(own_cluster):
    own_cluster.add_claim("lost", phase="Lost")
    assert "has lost its volume: restore it, or set store_claim to another" in problem(
        "claim", {"store_claim": "lost"}
    )


def test_a_claim_that_waits_for_its_first_pod_is_no_obstacle(own_cluster):
    own_cluster.add_claim("late", phase="Pending")
    assert found("claim", {"store_claim": "late"}) == "'late', ReadWriteMany, Pending"


def test_a_claim_that_may_not_be_looked_at_is_no_obstacle(cluster):
    cluster.deny("get", "persistentvolumeclaims")
    assert found("claim") == "'store', which this account may not look at"


# Secrets

SECRETS = {"secrets": {"HF_TOKEN": "hugging-face/token"}, "image_pull_secrets": ["regcred"]}


def test_secrets_that_are_there_are_told_by_name_and_without_their_content(cluster):
    assert found("secrets", SECRETS) == "regcred, hugging-face"


def test_without_secrets_nothing_is_looked_at(cluster):
    assert "secrets" not in cluster_checks(config())
    assert "secrets" in cluster_checks(config({"image_pull_secrets": ["regcred"]}))


def test_a_secret_that_does_not_exist_is_told_with_what_to_do(cluster):
    told = problem("secrets", {"secrets": {"HF_TOKEN": "hugging-faec/token"}})
    assert told.startswith("the secret 'hugging-faec' in the namespace 'demo' does not exist: create it")
    told = problem("secrets", {"image_pull_secrets": ["no-such"]})
    assert "'no-such'" in told
    assert "cluster.image_pull_secrets" in told


def test_a_key_that_a_secret_does_not_have_is_told(cluster):
    secrets = {"A": "hugging-face/token", "B": "hugging-face/nope", "C": "hugging-face/none"}
    told = problem("secrets", {"secrets": secrets})
    assert "the secret 'hugging-face' in the namespace 'demo' has no key none, nope" in told
    assert "correct cluster.secrets" in told
    assert "hf-value" not in told


def test_secrets_that_may_not_be_looked_at_are_no_obstacle(cluster):
    cluster.deny("get", "secrets")
    assert found("secrets", SECRETS).endswith("; this account may not look at regcred, hugging-face")


# Queue


def test_a_queue_that_is_there_is_told(own_cluster):
    own_cluster.add_queue("team-a")
    assert found("queue", {"queue": "team-a"}) == "Kueue's 'team-a', 0 waiting"


def test_a_queue_that_does_not_exist_is_told_with_what_to_do(own_cluster):
    own_cluster.add_queue("team-a")
    told = problem("queue", {"queue": "team-b"})
    assert "the LocalQueue 'team-b' in the namespace 'demo' does not exist" in told
    assert "kubectl get localqueues" in told


def test_a_queue_that_may_not_be_looked_at_is_no_obstacle(own_cluster):
    own_cluster.add_queue("team-a")
    own_cluster.deny("get", "localqueues")
    assert found("queue", {"queue": "team-a"}) == "'team-a', which this account may not look at"


def test_a_queue_without_kueue_is_told_with_what_to_do(cluster):
    told = problem("queue", {"queue": "team-a"})
    assert "cluster.queue is 'team-a', but the cluster has no Kueue" in told
    assert "cluster.gang to volcano" in told


def test_volcanos_queue_and_no_queue_are_not_looked_for(cluster):
    assert "queue" not in cluster_checks(config({"queue": "team-a", "gang": "volcano"}))
    assert "queue" not in cluster_checks(config())


# Etcd


@contextmanager
def etcd(status):
    """A server that answers to the API of version 2 with a status, and to anything else with 500."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/v2/keys/" else 500)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield {"rendezvous": "etcd", "etcd_endpoint": f"127.0.0.1:{server.server_port}"}
    finally:
        server.shutdown()
        server.server_close()


def test_an_etcd_that_speaks_to_torchrun_is_told(cluster):
    with etcd(200) as settings:
        assert found("rendezvous", settings) == f"etcd at {settings['etcd_endpoint']}"


def test_an_etcd_without_its_old_api_is_told_with_what_to_do(cluster):
    with etcd(404) as settings:
        told = problem("rendezvous", settings)
    assert "does not offer the API of version 2 (HTTP 404)" in told
    assert "--enable-v2" in told
    assert "cluster.rendezvous to c10d" in told


def test_an_etcd_that_does_not_answer_is_a_problem_only_inside_the_cluster(cluster, monkeypatch):
    with etcd(200) as gone:
        pass
    assert "cannot be reached from here" in found("rendezvous", gone)
    checks = cluster_checks(config(gone))
    monkeypatch.setattr(rendezvous, "is_inside", lambda: True)
    with pytest.raises(UserError, match="there is no answer from the etcd server"):
        checks["rendezvous"]()


def test_an_image_without_the_package_for_etcd_is_told(monkeypatch):
    monkeypatch.setattr(rendezvous.importlib.util, "find_spec", lambda name: None)
    with etcd(200) as settings:
        assert rendezvous.find_etcd(settings["etcd_endpoint"], own_image=False).ok
        with pytest.raises(UserError, match="python-etcd is not in the image"):
            rendezvous.find_etcd(settings["etcd_endpoint"], own_image=True)


def test_without_etcd_it_is_not_looked_for(cluster):
    assert "rendezvous" not in cluster_checks(config())


# Nodes


@pytest.fixture(scope="module")
def gpu_cluster(tmp_path_factory):
    with FakeCluster(tmp_path_factory.mktemp("gpus"), operator=False) as cluster:
        cluster.add_node("gpu0", gpus=8, labels={"pool": "a"})
        cluster.add_node("gpu1", gpus=8, labels={"pool": "b"})
        cluster.add_node("gpu2", gpus=4, labels={"pool": "a"})
        yield cluster


@pytest.fixture
def gpus(gpu_cluster, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(gpu_cluster.kubeconfig))
    yield gpu_cluster
    gpu_cluster.allow_all()


def nodes(number, **cluster):
    return {"cluster": cluster, "parallel": {"num_nodes": number}, "training": {"global_batch_size": 96}}


@pytest.mark.parametrize(
    "asked, text",
    [
        (nodes(2, gpus_per_node=8), "2 machine(s) fit 2 pod(s) with 8 nvidia.com/gpu"),
        (nodes(3, gpus_per_node=4), "3 machine(s) fit 3 pod(s) with 4 nvidia.com/gpu"),
        (nodes(4, gpus_per_node=4), "3 machine(s) fit 4 pod(s) with 4 nvidia.com/gpu"),
        (
            nodes(4, gpus_per_node=2, node_selector={"pool": "b"}),
            "1 machine(s) fit 4 pod(s) with 2 nvidia.com/gpu",
        ),
        (
            nodes(1, gpus_per_node=8, node_selector={"pool": "b"}),
            "1 machine(s) fit 1 pod(s) with 8 nvidia.com/gpu",
        ),
        (nodes(1, gpus_per_node=8, cpus_per_node=64), "2 machine(s) fit 1 pod(s) with 8 nvidia.com/gpu, 64 cpu"),
    ],
)
def test_machines_that_suffice_are_counted(gpus, asked, text):
    assert found("nodes", **asked) == text


def test_a_job_that_asks_for_nothing_fits_on_every_machine(gpus):
    assert found("nodes") == "4 machine(s) fit 1 pod(s) with no resources of their own"


def test_without_a_number_of_gpus_there_is_one_for_each_rank(gpus):
    told = problem(
        "nodes", {"gpus_per_node": None}, parallel={"procs_per_node": 16}, training={"global_batch_size": 96}
    )
    assert "each ask for 16 nvidia.com/gpu" in told


@pytest.mark.parametrize(
    "asked, words",
    [
        (
            nodes(3, gpus_per_node=8),
            "3 pod(s) that each ask for 8 nvidia.com/gpu, and 2 of the cluster's 4 machines fit",
        ),
        (nodes(6, gpus_per_node=4), "6 pod(s) that each ask for 4 nvidia.com/gpu, and 3 of"),
        (nodes(1, gpus_per_node=16), "and 0 of the cluster's 4 machines fit"),
        (nodes(1, gpus_per_node=16), "at most 8 nvidia.com/gpu on one"),
        (nodes(2, gpus_per_node=8, node_selector={"pool": "a"}), "(2 have the labels of cluster.node_selector;"),
        (nodes(1, gpus_per_node=1, node_selector={"pool": "z"}), "(0 have the labels of cluster.node_selector;"),
        (nodes(1, gpus_per_node=1, gpu_resource="amd.com/gpu"), "at most 0 amd.com/gpu on one"),
        (nodes(1, gpus_per_node=8, memory_per_node="1Ti"), "and 0 of the cluster's 4 machines fit"),
        (nodes(1, gpus_per_node=8, cpus_per_node="64.5"), "and 0 of the cluster's 4 machines fit"),
        (nodes(1, gpus_per_node=8, efa_per_node=4), "at most 8 nvidia.com/gpu, 0 vpc.amazonaws.com/efa on one"),
        (nodes(1, gpus_per_node=1, resources={"rdma/ib": 1}), "0 rdma/ib on one"),
    ],
)
def test_machines_that_do_not_suffice_are_told_with_what_there_is(gpus, asked, words):
    told = problem("nodes", **asked)
    assert words in told
    assert "ask for less" in told
    assert "cluster.autoscaling" in told


def test_machines_that_are_added_on_demand_need_not_be_there(gpus):
    asked = nodes(3, gpus_per_node=8, autoscaling=True)
    assert found("nodes", **asked) == "room for 2 of 3 pods now; machines are added on demand"


def test_a_machine_that_is_cordoned_does_not_count(own_cluster):
    asked = nodes(1, gpus_per_node=8)
    own_cluster.add_node("gpu0", gpus=8)
    assert found("nodes", **asked)
    own_cluster.store.update(NODES, None, "gpu0", lambda node: node["spec"].update(unschedulable=True))
    assert "0 of the cluster's 1 machines fit" in problem("nodes", **asked)


def test_machines_that_may_not_be_listed_are_no_obstacle(gpus):
    gpus.deny("list", "nodes")
    assert found("nodes", **nodes(96, gpus_per_node=8)) == "not looked at: this account may not list nodes"


@pytest.mark.parametrize(
    "text, number",
    [
        *[
            ("3920m", 3.92),
            ("64", 64),
            ("1.5", 1.5),
            ("2k", 2000),
            ("500Ki", 512_000),
            ("1Gi", 2**30),
            ("1E", 1e18),
        ],
        *[("1Ei", 2**60), ("1e3", 1000), ("1.5e+2", 150), ("7u", 7e-6), ("100n", 1e-7), (" 8 ", 8)],
    ],
)
def test_quantities_are_read_in_all_of_their_notations(text, number):
    assert quantity(text) == pytest.approx(number)


# No cluster


@pytest.mark.parametrize("content", [None, "", "{", "clusters: []", "current-context: x"])
def test_without_a_kubeconfig_that_is_one_there_is_one_problem(tmp_path, monkeypatch, content):
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(path))
    told = problem("cluster")
    assert "there is no cluster to talk to" in told
    assert "set KUBECONFIG" in told
    assert list(cluster_checks(config(SECRETS))) == ["cluster"]


def test_a_cluster_that_does_not_answer_is_told_once_and_soon(tmp_path, monkeypatch):
    with FakeCluster(tmp_path / "cluster", operator=False) as gone:
        monkeypatch.setenv("KUBECONFIG", str(gone.kubeconfig))
    assert checks_of_clusters._FIRST_PATIENCE_S <= 5
    monkeypatch.setattr(checks_of_clusters, "_FIRST_PATIENCE_S", 1)
    began = time.monotonic()
    checks = cluster_checks(config(SECRETS))
    assert list(checks) == ["cluster"]
    with pytest.raises(RuntimeError) as caught:
        checks["cluster"]()
    assert time.monotonic() - began < 5
    assert "the Kubernetes API server does not answer" in str(caught.value)
    assert "check that the cluster is up" in str(caught.value)


def test_an_answer_that_fails_once_is_asked_for_again(cluster):
    cluster.fail(503, times=1, path="/version")
    assert "rights" in cluster_checks(config())


def test_credentials_that_are_not_accepted_are_told_once(cluster):
    cluster.fail(401, times=1, path="/version", body={"kind": "Status", "code": 401, "reason": "Unauthorized"})
    told = problem("cluster")
    assert "does not accept the credentials" in told
    assert "log in again" in told


def test_a_cluster_that_tells_its_version_to_nobody_is_looked_at_all_the_same(cluster):
    cluster.fail(403, times=1, path="/version", body={"kind": "Status", "code": 403, "reason": "Forbidden"})
    assert "operator" in cluster_checks(config())


# All of them


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipe")
    model = save_tiny_model(folder / "model")
    data = folder / "train.jsonl"
    data.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    return {"model": {"name": str(model)}, "data": {"train": str(data)}}


def findings(recipe, store, **cluster):
    cluster = {"launcher": "pytorchjob", "store_claim": "store", "gpus_per_node": 0, **cluster}
    config = resolve({**recipe, "cluster": cluster, "parallel": {"procs_per_node": 1}})
    return {finding.subject: finding for finding in run_checks(config, store)}


def test_a_run_that_a_cluster_can_take_is_checked_within_seconds(cluster, recipe, tmp_path):
    began = time.monotonic()
    made = findings(recipe, tmp_path, **SECRETS)
    assert time.monotonic() - began < 3
    assert all(finding.ok for finding in made.values()), made
    assert list(made) == [
        "model",
        "data",
        "ranks",
        "store",
        "registry",
        "operator",
        "rights",
        "claim",
        "nodes",
        "secrets",
    ]


def test_everything_that_a_cluster_lacks_is_told_at_once(cluster, recipe, tmp_path):
    cluster.deny("create", "trainjobs")
    began = time.monotonic()
    made = findings(
        {**recipe, "model": {"name": "/no/such/model"}},
        tmp_path,
        launcher="trainjob",
        store_claim="no-such",
        gpus_per_node=8,
        queue="team-a",
        secrets={"HF_TOKEN": "no-secret/token"},
    )
    assert time.monotonic() - began < 3
    problems = {subject: finding.text for subject, finding in made.items() if not finding.ok}
    assert list(problems) == ["model", "operator", "rights", "claim", "nodes", "secrets", "queue"]
    assert all(": " in text for text in problems.values())


def test_what_has_nothing_to_do_with_the_cluster_is_told_without_one_too(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    made = findings({**recipe, "model": {"name": "/no/such/model"}}, tmp_path)
    assert [subject for subject, finding in made.items() if not finding.ok] == ["model", "cluster"]


def test_ranks_of_pods_are_not_those_of_this_machine(cluster, recipe, tmp_path):
    cluster = {"launcher": "pytorchjob", "store_claim": "store"}
    base = {**recipe, "cluster": {**cluster, "gpus_per_node": 8}, "parallel": {"num_nodes": 2}}
    two = resolve({**base, "training": {"global_batch_size": 32}})
    assert {f.subject: f.text for f in run_checks(two, tmp_path)}["ranks"] == "16 on 2 node(s)"
    odd = {f.subject: f for f in run_checks(resolve({**base, "training": {"global_batch_size": 20}}), tmp_path)}
    assert not odd["ranks"].ok
    assert "not a multiple of 16 ranks" in odd["ranks"].text
    unknown = resolve({**recipe, "cluster": cluster})
    told = {f.subject: f.text for f in run_checks(unknown, tmp_path)}["ranks"]
    assert told == "one per GPU of the train task, on 1 node(s)"
    none = resolve({**recipe, "cluster": {**cluster, "gpus_per_node": 0}})
    (ranks,) = [finding for finding in run_checks(none, tmp_path) if finding.subject == "ranks"]
    assert not ranks.ok and "set parallel.procs_per_node" in ranks.text


def test_the_job_mounts_what_the_steps_do():
    settings = config({"store_claim": None}).cluster
    _use_claim(settings, "mounted")
    _use_claim(settings, "")
    assert settings.store_claim == "mounted"
    with pytest.raises(
        UserError, match=r"cluster.store_claim is 'mounted', but the pipeline's steps mount 'other'"
    ):
        _use_claim(settings, "other")
    # The same storage may have another claim elsewhere.
    settings.namespace = "elsewhere"
    _use_claim(settings, "other")
    assert settings.store_claim == "mounted"
