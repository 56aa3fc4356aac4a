"""The double of the cluster answers as the recorded cluster did."""

import calendar
import contextlib
import copy
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from kubernetes import client, config, watch

from tests.doubles.cluster import FakeCluster

RECORDINGS = Path(__file__).parent / "doubles/recordings"
JOBS = "/apis/kubeflow.org/v1/namespaces/demo/pytorchjobs"
PODS = "/api/v1/namespaces/demo/pods"
LONG = "exec sleep 60"


def recording(name):
    return json.loads((RECORDINGS / f"{name}.json").read_text())


def job(
    name="job", command="true", *, elastic=True, workers=2, master=False, grace=2, clean="Running", **pod_spec
):
    """A PyTorchJob; its pods run `command` in a shell."""
    container = {"name": "pytorch", "image": "registry.local/debian:12", "command": ["sh", "-c", command]}
    template = {"spec": {"terminationGracePeriodSeconds": grace, "containers": [container], **pod_spec}}
    spec = {"nprocPerNode": "2", "runPolicy": {"cleanPodPolicy": clean}, "pytorchReplicaSpecs": {}}
    for kind, count in (("Master", int(master)), ("Worker", workers)):
        if count:
            replica = {"replicas": count, "restartPolicy": "Never", "template": copy.deepcopy(template)}
            spec["pytorchReplicaSpecs"][kind] = replica
    if elastic and not master:
        spec["elasticPolicy"] = {"minReplicas": workers, "maxReplicas": workers, "rdzvBackend": "c10d"}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "demo"},
        "spec": spec,
    }


def call(cluster, method, path, body=None, token=None, content_type="application/json"):
    """One request; `token` is the whole header, and `""` sends none."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster.server.http.port, timeout=20)
    headers = {"Authorization": f"Bearer {cluster.token}" if token is None else token}
    if body is not None:
        headers["Content-Type"] = content_type
    body = body if isinstance(body, str | None) else json.dumps(body)
    connection.request(method, path, body, {name: value for name, value in headers.items() if value})
    response = connection.getresponse()
    raw = response.read()
    connection.close()
    is_json = response.getheader("Content-Type") == "application/json" and "watch=true" not in path
    return SimpleNamespace(
        status=response.status,
        headers=response.headers,
        raw=raw,
        body=json.loads(raw) if is_json else raw.decode(errors="replace"),
    )


def create(cluster, body, query=""):
    answer = call(cluster, "POST", JOBS + query, body)
    assert answer.status == 201, answer.body
    return answer.body


def conditions(cluster, name):
    """Conditions that hold, with those that do not after a minus."""
    status = (cluster.job(name) or {}).get("status", {})
    return [("" if each["status"] == "True" else "-") + each["type"] for each in status.get("conditions", [])]


def replicas(cluster, name):
    statuses = cluster.job(name)["status"]["replicaStatuses"]
    return {
        kind: {key: value for key, value in each.items() if key != "selector"} for kind, each in statuses.items()
    }


def summary(cluster, name):
    """A job's status as the recordings' final states have it."""
    status = cluster.job(name)["status"]
    return {
        "conditions": [
            f"{each['type']}={each['status']} {each['reason']}: {each['message']}".replace(name, "JOB")
            for each in status["conditions"]
        ],
        "replicaStatuses": replicas(cluster, name),
    }


def final(recorded):
    return {key: recorded["final"]["job"].get(key) for key in ("conditions", "replicaStatuses")}


def left(cluster, name):
    return {
        "pods left": {
            pod["metadata"]["name"].replace(name, "JOB"): pod["status"]["phase"] for pod in cluster.pods()
        },
        "services left": sorted(each["metadata"]["name"].replace(name, "JOB") for each in cluster.services()),
    }


def recorded_left(recorded):
    return {
        "pods left": recorded["final"]["pods left"],
        "services left": sorted(recorded["final"]["services left"]),
    }


def events(cluster, name):
    """Reasons and messages of the events about a job and its pods."""
    return {
        (
            event["involvedObject"]["name"].replace(name, "JOB"),
            event["reason"],
            event["message"].replace(name, "JOB"),
        )
        for event in cluster.events()
    }


def recorded_events(recorded):
    found = {
        (row["on"].split("/")[1], row["EVENT"].split()[1], row["message"])
        for row in recorded["timeline"]
        if "EVENT" in row
    }
    return {each for each in found if each[0] != "JOB-worker-1"}


@pytest.fixture
def cluster(tmp_path):
    with FakeCluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A cluster with one job that runs, for requests that change nothing."""
    with FakeCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        create(cluster, job("err-base", LONG))
        cluster.wait(lambda: replicas_active(cluster, "err-base") == 2)
        yield cluster


def replicas_active(cluster, name):
    status = (cluster.job(name) or {}).get("status", {})
    return sum(each.get("active", 0) for each in status.get("replicaStatuses", {}).values())


# Errors


def changed(change, **options):
    def make(name):
        body = job(name, **options)
        change(body)
        return body

    return make


def worker(body):
    return body["spec"]["pytorchReplicaSpecs"]["Worker"]


def container(body):
    return worker(body)["template"]["spec"]["containers"][0]


def many_wrong(body):
    body["spec"]["nprocPerNode"] = 2
    worker(body).update(restartPolicy=5, replicas="two")


def only_master(body):
    body["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 1}


def chief(body):
    body["spec"]["pytorchReplicaSpecs"]["Chief"] = body["spec"]["pytorchReplicaSpecs"].pop("Worker")


BODIES = {
    "400-namespace-mismatch": changed(lambda body: body["metadata"].update(namespace="other")),
    "400-unknown-field-strict": changed(lambda body: body["spec"].update(bogusField=1)),
    "404-namespace-missing": changed(lambda body: body["metadata"].update(namespace="no-such-ns")),
    "409-already-exists": job,
    "422-bad-label": changed(lambda body: body["metadata"].update(labels={"a": "a b/c"})),
    "422-bad-name": job,
    "422-bad-quantity": changed(
        lambda body: container(body).update(resources={"limits": {"nvidia.com/gpu": "eight"}})
    ),
    "422-missing-required": changed(lambda body: body["spec"].pop("pytorchReplicaSpecs")),
    "422-nproc-int": changed(lambda body: body["spec"].update(nprocPerNode=2)),
    "422-several-causes": changed(many_wrong),
    "422-wrong-kind": changed(lambda body: body.update(kind="PytorchJob")),
    "422-wrong-type": changed(lambda body: worker(body).update(replicas="two")),
    "dryrun-webhook": changed(lambda body: container(body).update(name="other")),
    "webhook-container-name": changed(lambda body: container(body).update(name="other")),
    "webhook-elastic-without-worker": changed(only_master, workers=0, master=True),
    "webhook-name-starts-with-digit": lambda _: job("9err"),
    "webhook-name-with-dot": lambda _: job("err.dot"),
    "webhook-no-image": changed(lambda body: container(body).pop("image")),
    "webhook-replica-type": changed(chief),
    "webhook-two-masters": changed(
        lambda body: body["spec"]["pytorchReplicaSpecs"]["Master"].update(replicas=2), master=True
    ),
}
PLAIN = [
    "400-bad-field-selector",
    "400-bad-label-selector",
    "400-bad-pod-field-selector",
    "400-invalid-json",
    "401-bad-token",
    "403-no-token",
    "404-after-dryrun",
    "404-delete-missing",
    "404-discovery-group-missing",
    "404-group-missing",
    "404-group-missing-post",
    "404-job-missing",
    "404-kind-missing",
    "404-pod-missing",
    "404-version-missing",
    "415-strategic-merge",
    "415-wrong-content-type",
]


def replay(cluster, exchange, body=None):
    request = exchange["request"]
    token = {"Bearer nonsense": "Bearer nonsense", "(none)": ""}.get(request.get("Authorization"))
    body = request.get("body") if body is None else body
    kind = request.get("Content-Type", "application/json")
    return call(cluster, request["method"], request["path"], body, token, kind)


@pytest.mark.parametrize("name", [*PLAIN, *BODIES])
def test_refusals_are_those_of_a_cluster_to_the_byte(shared, name):
    exchange = recording(f"api-errors/{name}")
    expected = exchange["response"]
    named = re.search(r'\\"(err-?[\w-]*|Err_Name)\\"', json.dumps(expected["body"]))
    body = BODIES[name](named[1] if named else "err-x") if name in BODIES else None
    answer = replay(shared, exchange, body)
    if name == "422-several-causes":
        # The order of a map's keys is chance in Go.
        for each in (answer.body, expected["body"]):
            each["message"] = sorted(each["message"])
            each["details"]["causes"].sort(key=str)
    assert (answer.status, answer.body) == (expected["status"], expected["body"])
    assert answer.headers["Content-Type"] == expected["headers"]["Content-Type"]
    assert answer.headers["Content-Length"] == expected["headers"]["Content-Length"]


def test_a_stale_put_is_a_conflict(shared):
    exchange = recording("api-errors/409-conflict-on-put")
    body = {**shared.job("err-base"), "metadata": {"name": "err-base", "resourceVersion": "2"}}
    answer = replay(shared, exchange, body)
    assert (answer.status, answer.body) == (409, exchange["response"]["body"])


@pytest.mark.parametrize("name", ["create", "get", "get-missing", "kind-missing", "list-pods", "log", "watch"])
def test_missing_rights_come_before_everything_else(tmp_path, name):
    exchange = recording(f"api-errors/403-rbac-{name}")
    with FakeCluster(tmp_path) as cluster:
        cluster.allow_only()
        answer = replay(cluster, exchange, job("x") if name == "create" else None)
    expected = json.loads(json.dumps(exchange["response"]["body"]).replace("demo:no-rights", "demo:launcher"))
    assert (answer.status, json.loads(answer.raw)) == (403, expected)


def test_a_single_right_can_be_missing(cluster):
    create(cluster, job("err-base", LONG))
    cluster.deny("patch", "pytorchjobs")
    exchange = recording("api-errors/403-rbac-patch-as-launcher")
    assert replay(cluster, exchange).body == exchange["response"]["body"]
    for name in ("allowed", "denied", "subresource-log"):
        exchange = recording(f"api-errors/ssar-{name}")
        assert replay(cluster, exchange).body == exchange["response"]["body"]
    # A right says nothing of whether the kind is there.
    unknown = replay(cluster, recording("api-errors/ssar-unknown-kind"))
    assert unknown.body["status"]["allowed"] is True


def test_without_its_operator_no_job_can_be_written(cluster):
    create(cluster, job("operator-away", LONG))
    cluster.stop_operator()
    for name, body in (("webhook-unreachable", job("new")), ("patch-while-webhook-unreachable", None)):
        exchange = recording(f"api-errors/500-{name}")
        answer = replay(cluster, exchange, body)
        assert (answer.status, answer.body) == (500, exchange["response"]["body"])


def test_a_dry_run_is_checked_and_stores_nothing(cluster):
    expected = recording("api-errors/dryrun-ok")["response"]["body"]["metadata"]
    answer = create(cluster, job("err-dry"), "?dryRun=All")
    assert answer["metadata"].keys() == expected.keys()
    assert cluster.job("err-dry") is None


def test_unknown_fields_are_taken_out_with_a_warning(cluster):
    body = job("err-unk0", LONG)
    body["spec"]["bogusField"] = 1
    container(body)["comand"] = ["x"]
    expected = recording("api-errors/unknown-field-default")["response"]
    answer = call(cluster, "POST", JOBS, body)
    assert expected["headers"]["Warning"] in answer.headers["Warning"]
    assert answer.body["spec"].keys() == expected["body"]["spec"].keys()
    assert "comand" not in container(answer.body)
    strict = call(cluster, "POST", JOBS + "?fieldValidation=Strict", {**body, "metadata": {"name": "err-unk1"}})
    path = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].comand"
    assert strict.status == 400
    assert f'unknown field "{path}", unknown field "spec.bogusField"' in strict.body["message"]


def test_a_missing_namespace_has_an_empty_list(shared):
    exchange = recording("api-errors/list-namespace-missing")
    answer = replay(shared, exchange).body
    assert answer.pop("metadata")["continue"] == exchange["response"]["body"].pop("metadata")["continue"]
    assert answer == exchange["response"]["body"]


def test_labels_are_patched(shared):
    exchange = recording("api-errors/patch-labels-200")
    answer = replay(shared, exchange)
    expected = exchange["response"]["body"]
    assert (answer.status, answer.body.keys()) == (200, expected.keys())
    assert answer.body["metadata"].keys() == expected["metadata"].keys()
    assert answer.body["metadata"]["labels"] == {"a": "b"}
    assert answer.body["metadata"]["generation"] == 1


def test_discovery(shared):
    recorded = recording("discovery-kubeflow.org-v1")["resources"]
    answer = call(shared, "GET", "/apis/kubeflow.org/v1").body
    keys = ("name", "namespaced", "kind", "verbs")
    listed = [{key: each[key] for key in keys} for each in answer["resources"]]
    assert listed == [each for each in recorded if each["name"] != "pytorchjobs/scale"]
    assert call(shared, "GET", "/version").body["gitVersion"] == "v1.36.2"


# A job's way


def follow_job(cluster, name, until="Succeeded", timeout=15):
    cluster.wait(lambda: until in conditions(cluster, name), timeout)


def wait_until_up(cluster, *pods):
    """Wait until the pods' programs have said so: until then, SIGTERM means nothing to them."""

    def up(name):
        pod = next((each for each in cluster.pods() if each["metadata"]["name"] == name), None)
        return pod and pod["status"]["phase"] == "Running" and "up" in cluster.pod_log(name)

    cluster.wait(lambda: all(up(name) for name in pods))


def rows_of(cluster, path):
    """Events of a watch as they come, as (type, object); they end when the watch is cut."""
    response = stream(cluster, path)
    rows = []

    def read():
        with contextlib.suppress(http.client.HTTPException, OSError):
            while line := response.readline():
                event = json.loads(line)
                rows.append((event["type"], event["object"]))

    threading.Thread(target=read, daemon=True).start()
    return rows


def steps(rows):
    """What a watch of one object told, without repetitions and numbers that are chance."""
    told = []
    for kind, item in rows:
        status = item.get("status", {})
        entry = (
            kind,
            status.get("phase"),
            tuple((each["type"], each["status"], each.get("reason")) for each in status.get("conditions", [])),
            json.dumps(status.get("replicaStatuses"), sort_keys=True),
            next(iter(status.get("containerStatuses", [{"state": {}}])[0]["state"]), None),
            "deletionTimestamp" in item["metadata"],
        )
        if not told or told[-1] != entry:
            told.append(entry)
    return told


def recorded_rows(recorded, kind, name):
    """The recording's rows of one object with the fields filled in that did not change."""
    item, rows = {"metadata": {}, "status": {}}, []
    for row in recorded:
        if (row.get("kind"), row.get("name")) != (kind, name):
            continue
        item = copy.deepcopy(item)
        for key, value in row.items():
            if key.startswith("status."):
                item["status"][key.removeprefix("status.")] = value
            elif key == "deletionTimestamp":
                item["metadata"][key] = value
        rows.append((row["type"], item))
    return rows


def test_a_job_goes_the_recorded_way_to_success(cluster):
    """Conditions, counts and phases of a job and its pods, in their order."""
    recorded = recording("worker-only-elastic/watch")
    request = recording("worker-only-elastic/create")["request"]["body"]
    container(request)["command"] = ["sh", "-c", f"case $HOSTNAME in *-0) sleep 0.3;; *) {STAY};; esac"]
    jobs = rows_of(cluster, JOBS + "?watch=true")
    pods = rows_of(cluster, PODS + "?watch=true")
    create(cluster, request)
    follow_job(cluster, "ft-elastic")
    cluster.wait(lambda: any(kind == "DELETED" for kind, _ in pods))
    cluster.wait(lambda: replicas_active(cluster, "ft-elastic") == 0)
    cluster.wait(lambda: jobs[-1][1]["metadata"]["resourceVersion"] == version_of(cluster.job("ft-elastic")))
    expected = steps(recorded_rows(recorded, "PyTorchJob", "ft-elastic"))
    # Whether a look finds one pod active before both are is chance.
    assert steps(jobs) in (expected, [*expected[:2], *expected[3:]])
    of_pods = {}
    for kind, item in pods:
        of_pods.setdefault(item["metadata"]["name"], []).append((kind, item))
    recorded_kept = steps(recorded_rows(recorded, "Pod", "ft-elastic-worker-0"))
    assert steps(of_pods["ft-elastic-worker-0"]) == recorded_kept
    assert of_pods["ft-elastic-worker-1"][-1][0] == "DELETED"


def version_of(item):
    return item["metadata"]["resourceVersion"]


def without_chance(item):
    """An object without what differs from run to run."""
    text = re.sub(r'"\d{4}-\d\d-\d\dT[\d:.]*Z"', '"TIME"', json.dumps(item))
    text = re.sub(r'"[0-9a-f]{8}-[0-9a-f-]{27}"', '"UID"', text)
    text = re.sub(r"kube-api-access-\w{5}", "kube-api-access-x", text)
    text = re.sub(r'"10\.0\.[01]\.\d+"', '"IP"', text)
    text = re.sub(r'"resourceVersion": "\d+"', '"resourceVersion": "N"', text)
    text = re.sub(r"containerd://[0-9a-f]{64}", "containerd://x", text)
    return json.loads(text)


@pytest.mark.parametrize("case", ["worker-only-elastic", "master-and-workers"])
def test_what_the_operator_makes_of_a_job(cluster, case):
    """The created job, the pods' labels, owners and variables, and the services."""
    exchange = recording(f"{case}/create")
    request, expected = exchange["request"]["body"], exchange["response"]["body"]
    name = request["metadata"]["name"]
    number = 2 if case == "worker-only-elastic" else 3
    assert without_chance(create(cluster, request)) == without_chance(expected)
    cluster.wait(lambda: replicas_active(cluster, name) == number)
    pods = {pod["metadata"]["name"]: pod for pod in cluster.pods(name)}
    injected = recording(f"{case}/env")
    assert pods.keys() == injected.keys()
    for pod, variables in injected.items():
        listed = next(value for key, value in variables.items() if key.startswith("container env"))
        assert pods[pod]["spec"]["containers"][0]["env"] == listed
    for each in recording(f"{case}/pods-while-running")["labels, ownerReferences, hostname of each"]:
        pod = pods[each["name"]]
        assert pod["metadata"]["labels"] == each["labels"]
        assert without_chance(pod["metadata"]["ownerReferences"]) == without_chance(each["ownerReferences"])
        assert pod["spec"]["restartPolicy"] == each["restartPolicy"]
        assert pod["spec"]["containers"][0]["ports"] == each["ports"]
        for init in each["initContainers"] or []:
            made = pod["spec"]["initContainers"][0]
            assert (made["name"], made["command"], made["resources"]) == (
                init["name"],
                init["command"],
                init["resources"],
            )
    if case == "worker-only-elastic":
        services = [without_chance(each) for each in recording(f"{case}/services")["items"]]
        listed = call(cluster, "GET", "/api/v1/namespaces/demo/services").body["items"]
        assert [without_chance(each) for each in listed] == services


def test_a_running_pod_in_full(cluster):
    request = recording("worker-only-elastic/create")["request"]["body"]
    container(request)["command"] = ["sh", "-c", LONG]
    create(cluster, request)
    cluster.wait(lambda: replicas_active(cluster, "ft-elastic") == 2)
    expected = without_chance(recording("worker-only-elastic/pods-while-running")["first item in full"])
    path = PODS + "?labelSelector=training.kubeflow.org%2Fjob-name%3Dft-elastic"
    pod = without_chance(call(cluster, "GET", path).body["items"][0])
    assert pod["metadata"] == expected["metadata"]
    expected["spec"]["containers"][0]["command"] = ["sh", "-c", LONG]
    assert pod["spec"] == expected["spec"]
    for key in ("phase", "conditions", "hostIP", "podIP", "startTime", "qosClass"):
        assert pod["status"][key] == expected["status"][key]
    state = pod["status"]["containerStatuses"][0]
    for key in ("name", "state", "lastState", "ready", "restartCount", "image", "containerID", "started"):
        assert state[key] == expected["status"]["containerStatuses"][0][key]


STAY = "trap 'exit 143' TERM; echo up; sleep 40 & wait $!"
FAIL = f"case $HOSTNAME in *-1) sleep 0.3; echo failing >&2; exit 1;; *) {STAY};; esac"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("failures/never-exit1-clean-running", {"command": FAIL}),
        ("failures/never-exit1-clean-all", {"command": FAIL, "clean": "All"}),
        ("failures/never-exit1-clean-none", {"command": FAIL.replace("sleep 40", "sleep 1.2"), "clean": "None"}),
        ("failures/master-fails", {"command": FAIL.replace("*-1)", "*-master-0)"), "master": True}),
        ("failures/bad-command", {}),
        (
            "lifecycle/success-worker0-first",
            {"command": FAIL.replace("*-1)", "*-0)").replace("exit 1;", "exit 0;")},
        ),
        (
            "lifecycle/master-ends-first",
            {"command": FAIL.replace("*-1)", "*-master-0)").replace("exit 1;", "exit 0;"), "master": True},
        ),
    ],
)
def test_how_jobs_end(cluster, name, options):
    recorded = recording(name)
    body = job("ends", **options)
    if name == "failures/bad-command":
        container(body)["command"] = ["/no/such/program"]
        # The two pods fail together; the recorded ones did so one after the other.
        body["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 1
        recorded["final"]["services left"] = recorded["final"]["services left"][:1]
    create(cluster, body)
    follow_job(cluster, "ends", "Succeeded" if name.startswith("lifecycle") else "Failed")
    cluster.wait(lambda: left(cluster, "ends") == recorded_left(recorded))
    cluster.wait(lambda: summary(cluster, "ends") == final(recorded))
    codes = {
        pod["metadata"]["name"].replace("ends", "JOB"): pod["status"]["containerStatuses"][0]["state"][
            "terminated"
        ]
        for pod in cluster.pods()
    }
    for pod, ended in codes.items():
        rows = [row for row in recorded["timeline"] if row.get("MODIFIED") == f"Pod/{pod}" and "container" in row]
        expected = rows[-1]["container"]["state"]["terminated"]
        for key in ("exitCode", "reason", "message"):
            assert ended.get(key) == expected.get(key)
    missing = {each for each in recorded_events(recorded) if each[0] == "JOB"} - events(cluster, "ends")
    assert not {each for each in missing if "worker-1" not in each[2]}


def test_a_deleted_pod_fails_its_job_at_once(cluster):
    recorded = recording("failures/never-pod-deleted")
    create(cluster, job("ends", STAY.replace("exit 143", "sleep 0.2; exit 143")))
    wait_until_up(cluster, "ends-worker-0", "ends-worker-1")
    cluster.delete_pod("ends-worker-1")
    follow_job(cluster, "ends", "Failed", timeout=1)
    assert len(cluster.pods()) == 2
    cluster.wait(lambda: left(cluster, "ends") == recorded_left(recorded))
    assert summary(cluster, "ends") == final(recorded)


def test_a_pod_that_is_deleted_by_force_fails_its_job(cluster):
    create(cluster, job("ends", LONG))
    cluster.wait(lambda: replicas_active(cluster, "ends") == 2)
    cluster.delete_pod("ends-worker-1", grace=0)
    follow_job(cluster, "ends", "Failed")
    assert replicas(cluster, "ends") == {"Worker": {"active": 1, "failed": 1}}


def test_memory_and_eviction(cluster):
    for name, harm in (("oom", cluster.oom_kill), ("evicted", cluster.evict)):
        create(cluster, job(name, STAY))
        wait_until_up(cluster, f"{name}-worker-0", f"{name}-worker-1")
        harm(f"{name}-worker-1")
        follow_job(cluster, name, "Failed")
    recorded = recording("failures/never-oom-pid1")
    assert summary(cluster, "oom") == final(recorded)
    pods = {pod["metadata"]["name"]: pod["status"] for pod in cluster.pods()}
    ended = pods["oom-worker-1"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")
    evicted = pods["evicted-worker-1"]
    assert (evicted["phase"], evicted["reason"]) == ("Failed", "Evicted")
    assert evicted["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
    assert summary(cluster, "evicted") == final(recording("failures/evicted"))


# What does not start


def with_container(**fields):
    return lambda body: container(body).update(fields)


def with_pod(**fields):
    return lambda body: worker(body)["template"]["spec"].update(fields)


GPUS = {"limits": {"nvidia.com/gpu": "16"}}
NOT_NODE0 = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node0"]}
REQUIRED = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [NOT_NODE0]}]
        }
    }
}
TOKEN = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "no-such-secret", "key": "token"}}}
NEVER_STARTS = {
    "unschedulable-gpu": with_container(resources=GPUS),
    "affinity-not-in": with_pod(affinity=REQUIRED),
    "missing-pvc": with_pod(volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "no-such-claim"}}]),
    "missing-secret": with_container(env=[TOKEN]),
    "missing-configmap": with_pod(volumes=[{"name": "d", "configMap": {"name": "no-such-map"}}]),
    "image-invalid-name": with_container(image="Registry/UPPER:1"),
    "image-never-pull": with_container(image="registry.local/absent:1", imagePullPolicy="Never"),
    "quota": with_container(resources=GPUS),
}


@pytest.mark.parametrize("name", NEVER_STARTS)
def test_what_does_not_start_says_why(cluster, name):
    recorded = recording(f"does-not-start/{name}")
    cluster.images = {"registry.local/debian:12"}
    if name == "quota":
        cluster.add_quota(gpus=8)
    body = job("waits", LONG)
    NEVER_STARTS[name](body)
    create(cluster, body)
    cluster.wait(lambda: recorded_events(recorded) <= events(cluster, "waits"))
    if name == "quota":
        assert "status" not in cluster.job("waits")
        assert cluster.pods() == []
        return
    cluster.wait(lambda: summary(cluster, "waits") == final(recorded))
    assert left(cluster, "waits") == recorded_left(recorded)
    rows = [row for row in recorded["timeline"] if row.get("MODIFIED") == "Pod/JOB-worker-0"]
    states = [row["container"]["state"] for row in rows if "container" in row]
    pod = cluster.pods()[0]["status"]
    if states:
        assert pod["containerStatuses"][0]["state"] == states[-1]
    scheduled = next(each for each in pod["conditions"] if each["type"] == "PodScheduled")
    told = next(row["conditions"]["PodScheduled"] for row in rows if "PodScheduled" in row.get("conditions", {}))
    parts = [scheduled["status"], scheduled.get("reason", "") + ":", scheduled.get("message", "")]
    assert told == (" ".join(parts) if "reason" in scheduled else "True")


def test_an_image_that_cannot_be_pulled_is_tried_again(cluster):
    recorded = recording("does-not-start/image-pull")
    cluster.images = {"registry.local/debian:12"}
    body = job("waits")
    container(body)["image"] = "registry.invalid/team/missing:1"
    create(cluster, body)
    reasons = {each[:2] for each in recorded_events(recorded)}
    cluster.wait(lambda: reasons <= {each[:2] for each in events(cluster, "waits")})
    assert summary(cluster, "waits") == final(recorded)
    cluster.images.add("registry.invalid/team/missing:1")
    follow_job(cluster, "waits")


def test_what_was_missing_can_come_later(cluster):
    body = job("waits", 'test "$HF_TOKEN" = secret')
    container(body)["env"] = [TOKEN]
    container(body)["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    create(cluster, body)
    cluster.wait(lambda: len([event for event in cluster.events() if event["reason"] == "FailedScheduling"]) == 2)
    cluster.add_node("node1", gpus=2)
    cluster.wait(lambda: any("no-such-secret" in event["message"] for event in cluster.events("waits")))
    cluster.add_secret("no-such-secret", {"token": "secret"})
    follow_job(cluster, "waits")


def test_why_nodes_are_refused(cluster):
    cluster.add_node("node1", gpus=8, taints=[{"key": "dedicated", "value": "x", "effect": "NoSchedule"}])
    cluster.add_node("node2", gpus=8, labels={"disk": "ssd"})
    cluster.run_pod("first", ["sleep", "40"], containers=[gpu_container(8)])
    cluster.wait(lambda: cluster.pods()[0]["spec"].get("nodeName") == "node2")
    cluster.run_pod("second", containers=[gpu_container(4)], argv=["true"])
    cluster.run_pod("third", containers=[gpu_container(0)], argv=["true"], nodeSelector={"disk": "hdd"})
    cluster.wait(lambda: len([event for event in cluster.events() if event["reason"] == "FailedScheduling"]) == 2)
    messages = {
        event["involvedObject"]["name"]: event["message"]
        for event in cluster.events()
        if event["reason"] == "FailedScheduling"
    }
    assert messages["second"] == (
        "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient nvidia.com/gpu. "
        "no new claims to deallocate, preemption: 0/3 nodes are available: 1 No preemption victims found for "
        "incoming pod, 2 Preemption is not helpful for scheduling."
    )
    assert messages["third"].startswith(
        "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't match Pod's node affinity"
    )


def gpu_container(count):
    resources = {"limits": {"nvidia.com/gpu": str(count)}} if count else {}
    return {"name": "pytorch", "image": "registry.local/x:1", "command": ["sleep", "40"], "resources": resources}


@pytest.mark.parametrize(
    "case",
    [
        "54 characters, elastic, 2 workers",
        "55 characters, elastic, 2 workers",
        "54 characters, elastic, 11 workers (worker-10 has two digits)",
        "64 characters, elastic, 2 workers",
    ],
)
def test_long_names(cluster, case):
    recorded = recording("names/lengths")[case]
    workers = int(re.search(r"(\d+) workers", case)[1])
    letter = json.dumps(recorded)[json.dumps(recorded).find("ame-") - 1]
    name = f"{letter}ame-".ljust(recorded["name length"], "x")
    answer = call(cluster, "POST", JOBS, job(name, workers=workers))
    assert answer.status == recorded["create"]["status"]
    if answer.status != 201:
        assert answer.body["message"] == recorded["create"]["message"]
        return
    if recorded["job status after ~12 s"] != "(the job has no status at all)":
        follow_job(cluster, name)
        return
    cluster.wait(lambda: {pod["status"]["phase"] for pod in cluster.pods()} == {"Succeeded"})
    assert len(cluster.pods()) == workers
    assert "status" not in cluster.job(name)
    assert len(cluster.services()) == (10 if workers == 11 else 0)
    for event in recorded["events of the job"]:
        found = {each["message"]: each["count"] for each in cluster.events(name)}
        assert found[event["message"]] > 1


def test_a_pod_that_the_server_does_not_take_leaves_no_status(cluster):
    body = job("err-enum")
    worker(body)["restartPolicy"] = "Sometimes"
    create(cluster, body)
    expected = recording("api-errors/unknown-restart-policy-events")[0]["message"]
    cluster.wait(lambda: any(event["message"] == expected for event in cluster.events()))
    assert "status" not in cluster.job("err-enum")


def test_what_the_double_does_not_know_is_refused_loudly(cluster):
    body = job()
    worker(body)["restartPolicy"] = "OnFailure"
    answer = call(cluster, "POST", JOBS, body)
    assert (answer.status, "OnFailure" in answer.body["message"]) == (501, True)


# Suspension, time to live, queues, outages


def test_suspension(cluster):
    recorded = recording("lifecycle/suspend")
    at_first = recording("lifecycle/suspend-from-start")
    body = job("queued", STAY)
    body["spec"]["runPolicy"]["suspend"] = True
    create(cluster, body)
    cluster.wait(lambda: conditions(cluster, "queued") == ["Created", "Suspended"])
    assert "replicaStatuses" not in cluster.job("queued")["status"]
    assert recorded_events(at_first) <= events(cluster, "queued")
    for again in range(2):
        patch_suspend(cluster, False)
        cluster.wait(lambda: replicas_active(cluster, "queued") == 2)
        wait_until_up(cluster, "queued-worker-0", "queued-worker-1")
        assert conditions(cluster, "queued") == ["Created", "-Suspended", "Running"]
        if not again:
            patch_suspend(cluster, True)
            cluster.wait(lambda: cluster.pods() == [] and cluster.services() == [])
            assert conditions(cluster, "queued") == ["Created", "-Running", "Suspended"]
    assert cluster.job("queued")["metadata"]["generation"] == 4
    assert {each for each in recorded_events(recorded) if "Resumed" in each[1]} <= events(cluster, "queued")


def patch_suspend(cluster, value):
    body = {"spec": {"runPolicy": {"suspend": value}}}
    assert (
        call(cluster, "PATCH", JOBS + "/queued", body, content_type="application/merge-patch+json").status == 200
    )


def test_a_job_with_a_queue_waits_for_admission(cluster):
    cluster.add_queue("team")
    body = job("queued")
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    assert create(cluster, body)["spec"]["runPolicy"]["suspend"] is True
    cluster.wait(lambda: "Suspended" in conditions(cluster, "queued"))
    assert cluster.pods() == []
    cluster.admit("queued")
    follow_job(cluster, "queued")


def test_a_job_goes_when_its_time_is_over(cluster):
    body = job("short")
    body["spec"]["runPolicy"]["ttlSecondsAfterFinished"] = 1
    create(cluster, body)
    follow_job(cluster, "short")
    assert cluster.job("short") is not None
    cluster.wait(lambda: cluster.job("short") is None and cluster.pods() == [] and cluster.services() == [], 5)


def test_an_operator_that_was_away_catches_up(cluster):
    recorded = recording("outages/operator-away")
    create(cluster, job("away", "sleep 0.5"))
    cluster.wait(lambda: replicas_active(cluster, "away") == 2)
    cluster.stop_operator()
    cluster.wait(lambda: {pod["status"]["phase"] for pod in cluster.pods()} == {"Succeeded"})
    stale = recorded["while the operator was away"]["job"]
    assert summary(cluster, "away") == {key: stale[key] for key in ("conditions", "replicaStatuses")}
    cluster.start_operator()
    follow_job(cluster, "away")
    caught_up = recorded["after it came back"]["job"]
    assert summary(cluster, "away") == {key: caught_up[key] for key in ("conditions", "replicaStatuses")}


def test_a_lost_node(cluster):
    recorded = recording("outages/node-lost")
    create(cluster, job("lost", STAY))
    wait_until_up(cluster, "lost-worker-0", "lost-worker-1")
    cluster.lags.toleration = 0.001
    cluster.kill_node("node0")
    answer = call(cluster, "GET", PODS + "/lost-worker-0/log")
    expected = recorded["log while the kubelet is frozen"]["response"]
    assert (answer.status, answer.body) == (500, json.loads(json.dumps(expected["body"]).replace("JOB", "lost")))
    assert conditions(cluster, "lost") == ["Created", "Running"]
    follow_job(cluster, "lost", "Failed")
    cluster.wait(lambda: all("deletionTimestamp" in pod["metadata"] for pod in cluster.pods()))
    for pod in cluster.pods():
        conditions_of = [
            {"type": each["type"], "status": each["status"], "reason": each.get("reason")}
            for each in pod["status"]["conditions"]
        ]
        settled = recorded["pods 8 s after the job settled"][pod["metadata"]["name"].replace("lost", "JOB")]
        assert conditions_of == settled["conditions"]
        assert pod["status"]["phase"] == "Running"
    call(cluster, "DELETE", JOBS + "/lost")
    cluster.wait(lambda: cluster.services() == [])
    assert len(cluster.pods()) == 2
    answer = call(cluster, "DELETE", PODS + "/lost-worker-1?gracePeriodSeconds=0")
    assert (answer.status, len(cluster.pods())) == (200, 1)


# Deletion


IGNORES = "trap '' TERM; echo up; while true; do sleep 0.1; done"


def delete_job(cluster, name, **options):
    body = {"kind": "DeleteOptions", "apiVersion": "v1", **options} if options else None
    return call(cluster, "DELETE", f"{JOBS}/{name}", body)


def test_what_a_delete_answers(cluster):
    create(cluster, job("del-precondition", LONG))
    uid = cluster.job("del-precondition")["metadata"]["uid"]
    for name in ("precondition-uid", "bad-propagation-policy", "background-ok"):
        exchange = recording(f"deletion/{name}")
        answer = replay(cluster, exchange)
        expected = json.dumps(exchange["response"]["body"]).replace("7f42d324-3657-45dd-af9a-f4a03e9f6daf", uid)
        assert (answer.status, answer.body) == (exchange["response"]["status"], json.loads(expected))


@pytest.mark.parametrize("policy", ["Foreground", "Background", "Orphan", None])
def test_what_a_delete_does(cluster, policy):
    recorded = recording(f"deletion/del-{(policy or 'background').lower()}")
    create(cluster, job("gone", IGNORES, grace=1))
    wait_until_up(cluster, "gone-worker-0", "gone-worker-1")
    answer = delete_job(cluster, "gone", **({"propagationPolicy": policy} if policy else {}))
    expected = recorded["delete"]["response"]["body"]
    assert answer.body["kind"] == expected["kind"]
    if policy in ("Foreground", "Orphan"):
        assert answer.body["metadata"].keys() == expected["metadata"].keys()
        assert answer.body["metadata"]["finalizers"] == expected["metadata"]["finalizers"]
        assert answer.body["metadata"]["generation"] == 2
    if policy == "Orphan":
        cluster.wait(lambda: cluster.job("gone") is None)
        assert [pod["status"]["phase"] for pod in cluster.pods()] == ["Running", "Running"]
        assert len(cluster.services()) == 2
        return
    cluster.wait(lambda: cluster.services() == [])
    later = {"Foreground": 200}.get(policy, 404)
    assert call(cluster, "GET", f"{JOBS}/gone").status == later
    assert delete_job(cluster, "gone").status == later
    phases = [(pod["status"]["phase"], pod["metadata"]["deletionGracePeriodSeconds"]) for pod in cluster.pods()]
    assert phases == [("Running", 1), ("Running", 1)]
    cluster.wait(lambda: cluster.pods() == [] and cluster.job("gone") is None)


def test_a_job_goes_with_its_owner(cluster):
    """Unless the owner is of a kind that this cluster does not know."""
    pod = cluster.run_pod("step")
    uid = cluster.pods()[0]["metadata"]["uid"]
    owners = {
        "owned": {"apiVersion": "v1", "kind": "Pod", "name": "step", "uid": uid},
        "foreign": {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run", "uid": "1-2-3"},
    }
    for name, owner in owners.items():
        body = job(name, LONG)
        body["metadata"]["ownerReferences"] = [owner]
        create(cluster, body)
    cluster.wait(lambda: replicas_active(cluster, "owned") + replicas_active(cluster, "foreign") == 4)
    cluster.delete_pod(pod.name, grace=0)
    cluster.wait(lambda: cluster.job("owned") is None)
    assert conditions(cluster, "foreign") == ["Created", "Running"]


def test_the_name_of_a_job_in_foreground_deletion_is_taken(cluster):
    recorded = recording("deletion/recreate-foreground")
    create(cluster, job("gone", IGNORES, grace=1))
    wait_until_up(cluster, "gone-worker-0", "gone-worker-1")
    delete_job(cluster, "gone", propagationPolicy="Foreground")
    refused = call(cluster, "POST", JOBS, job("gone"))
    expected = recorded["POST of the same name, once a second"][0]
    assert (refused.status, refused.body) == (409, json.loads(json.dumps(expected["body"]).replace("JOB", "gone")))
    cluster.wait(lambda: call(cluster, "POST", JOBS, job("gone")).status == 201)
    follow_job(cluster, "gone")


def test_a_job_of_the_same_name_waits_for_the_old_pods(cluster):
    recorded = recording("deletion/recreate-background")
    create(cluster, job("gone", IGNORES, grace=1))
    wait_until_up(cluster, "gone-worker-0", "gone-worker-1")
    old = {pod["metadata"]["uid"] for pod in cluster.pods()}
    delete_job(cluster, "gone", propagationPolicy="Background")
    create(cluster, job("gone"))
    cluster.wait(
        lambda: {each for each in recorded_events(recorded) if "Failed" in each[1]} <= events(cluster, "gone")
    )
    assert {pod["metadata"]["uid"] for pod in cluster.pods()} == old
    assert "status" not in cluster.job("gone")
    follow_job(cluster, "gone")
    assert not old & {pod["metadata"]["uid"] for pod in cluster.pods()}


@pytest.mark.parametrize(("command", "phase"), [(["true"], "Succeeded"), (["sh", "-c", "exit 201"], "Failed")])
def test_a_container_starts_only_after_its_init_container_succeeded(cluster, command, phase):
    image = "registry.local/shardline:1"
    cluster.run_pod("checked", ["true"], initContainers=[{"name": "health", "image": image, "command": command}])
    (pod,) = cluster.wait(lambda: [pod for pod in cluster.pods() if pod["status"]["phase"] == phase])
    (init,) = pod["status"]["initContainerStatuses"]
    (main,) = pod["status"]["containerStatuses"]
    assert init["state"]["terminated"]["exitCode"] == (0 if phase == "Succeeded" else 201)
    assert ("terminated" in main["state"]) == (phase == "Succeeded")


def test_a_pod_gets_its_grace(cluster):
    recorded = recording("deletion/del-pod-ignores-term")
    cluster.run_pod("stubborn", ["sh", "-c", IGNORES], terminationGracePeriodSeconds=1)
    wait_until_up(cluster, "stubborn")
    answer = call(cluster, "DELETE", PODS + "/stubborn")
    expected = recorded["delete"]["body (metadata and phase; the whole pod comes back)"]
    assert answer.body["metadata"].keys() == expected["metadata"].keys()
    assert (answer.body["status"]["phase"], answer.body["metadata"]["generation"]) == ("Running", 2)
    again = call(cluster, "DELETE", PODS + "/stubborn?gracePeriodSeconds=20")
    assert again.body["metadata"]["deletionGracePeriodSeconds"] == 1
    killed = cluster.wait(lambda: [pod for pod in cluster.pods() if pod["status"]["phase"] == "Failed"])
    assert killed[0]["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    cluster.wait(lambda: cluster.pods() == [])
    assert call(cluster, "GET", PODS + "/stubborn/log").status == recorded["log afterwards"]


# Logs


@pytest.fixture(scope="module")
def recorded_log(tmp_path_factory):
    """A cluster with the recorded pod, whose log has the recorded lines and times."""
    exchange = recording("pod-logs/parameters")["timestamps=true"]["response"]["body"]
    with FakeCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        pod = cluster.run_pod("log-a")
        for line in exchange.splitlines(keepends=True):
            stamp, text = line.split(" ", 1)
            whole = time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S")
            moment = calendar.timegm(whole) * 10**9 + int(stamp[20:29])
            cluster.kubelet.log_of(cluster.pods()[0]).append(text.encode(), moment)
        pod.end()
        yield cluster


@pytest.mark.parametrize("case", recording("pod-logs/parameters"))
def test_parameters_of_logs(recorded_log, case):
    exchange = recording("pod-logs/parameters")[case]
    answer = replay(recorded_log, exchange)
    assert (answer.status, answer.body) == (exchange["response"]["status"], exchange["response"]["body"])
    for header, value in exchange["response"]["headers"].items():
        assert answer.headers[header] == value


def test_logs_of_pods_that_are_not_there(recorded_log):
    exchange = recording("pod-logs/deleted-pod")["pod never existed"]
    answer = replay(recorded_log, exchange)
    assert (answer.status, answer.body) == (404, exchange["response"]["body"])


def test_logs_before_the_start(cluster):
    recorded = recording("pod-logs/before-start")
    cluster.images = {"registry.local/image:1"}
    cluster.lags.retry = 0.5
    cluster.run_pod("log-unsched", ["true"], nodeSelector={"disk": "none"})
    absent = {"name": "pytorch", "image": "registry.local/none:1", "command": ["true"]}
    cluster.run_pod("log-nopull", ["true"], containers=[absent])
    cluster.lags.create = 0.5
    cluster.run_pod("log-starting", ["true"])

    def check(case):
        exchange = recorded[case]
        answer = replay(cluster, exchange)
        assert (answer.status, answer.body) == (exchange["response"]["status"], exchange["response"]["body"])

    cluster.wait(lambda: cluster.pods()[1]["spec"].get("nodeName"))
    cluster.wait(lambda: cluster.pods()[0]["spec"].get("nodeName"))
    check("while ContainerCreating")
    check("unschedulable pod")
    check("unschedulable pod, follow=true")
    for reason, case in (
        ("ErrImagePull", "image not pulled yet: ErrImagePull or ContainerCreating"),
        ("ImagePullBackOff", "image not pulled: ImagePullBackOff"),
    ):
        cluster.wait(lambda reason=reason: waiting_reason(cluster, "log-nopull") == reason)
        check(case)
    check("follow=true on it")
    check("previous=true on it")


def waiting_reason(cluster, name):
    pod = next(pod for pod in cluster.pods() if pod["metadata"]["name"] == name)
    statuses = pod["status"].get("containerStatuses")
    return statuses and statuses[0]["state"].get("waiting", {}).get("reason")


def test_a_followed_log_ends_before_the_phase_does(cluster):
    cluster.lags.phase = 0.5
    recorded = recording("pod-logs/follow")["follow from start to exit"]
    script = "for i in 1 2 3; do echo out $i; echo err $i >&2; sleep 0.1; done; printf 'no newline at the end'"
    cluster.run_pod("log-a", ["sh", "-c", script])
    cluster.wait(lambda: cluster.pods()[0]["status"]["phase"] == "Running")
    response = stream(cluster, PODS + "/log-a/log?follow=true")
    chunks = list(iter(lambda: response.read1(), b""))
    expected = [
        chunk["chunk"].encode() for chunk in recorded["chunks as they arrived (t in seconds from the request)"]
    ]
    assert b"".join(chunks).splitlines()[:-1] == b"".join(expected[:6]).splitlines()
    assert b"".join(chunks).splitlines()[-1] == expected[-1]
    pod = cluster.pods()[0]["status"]
    assert pod["phase"] == recorded["pod just after the end"]["phase"] == "Running"
    assert pod["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    again = call(cluster, "GET", PODS + "/log-a/log?follow=true&tailLines=1")
    assert again.body == "no newline at the end"


def test_a_deleted_pod_may_say_goodbye(cluster):
    cluster.run_pod(
        "log-del", ["sh", "-c", "trap 'echo got TERM; exit 0' TERM; echo up; while true; do sleep 0.05; done"]
    )
    wait_until_up(cluster, "log-del")
    response = stream(cluster, PODS + "/log-del/log?follow=true")
    call(cluster, "DELETE", PODS + "/log-del")
    assert response.read() == b"up\ngot TERM\n"


def test_lines_come_with_their_times(cluster):
    pod = cluster.run_pod("log-a", lines=["first"])
    response = stream(cluster, PODS + "/log-a/log?follow=true&timestamps=true")
    pod.log(b"bad \xff\rutf8")
    pod.log("")
    lines = [response.readline() for _ in range(3)]
    pod.end(1)
    assert response.read() == b""
    stamps, texts = zip(*(line.split(b" ", 1) for line in lines), strict=True)
    assert texts == (b"first\n", b"bad \xff\rutf8\n", b"\n")
    assert all(re.fullmatch(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", stamp) for stamp in stamps)
    assert cluster.pods()[0]["status"]["phase"] == "Failed"


def stream(cluster, path):
    connection = http.client.HTTPConnection("127.0.0.1", cluster.server.http.port, timeout=20)
    connection.request("GET", path, headers={"Authorization": f"Bearer {cluster.token}"})
    response = connection.getresponse()
    assert (response.status, response.getheader("Transfer-Encoding")) == (200, "chunked")
    return response


def test_many_followers(cluster):
    """64 streams at once, each of which gets every line."""
    pod = cluster.run_pod("log-a")
    responses = [stream(cluster, PODS + "/log-a/log?follow=true") for _ in range(64)]
    for number in range(100):
        pod.log(f"line {number}")
    pod.end()
    expected = "".join(f"line {number}\n" for number in range(100)).encode()
    assert all(response.read() == expected for response in responses)


# Watches


@pytest.mark.parametrize("case", recording("watch/expired-and-odd-resource-versions"))
def test_odd_versions(cluster, case):
    exchange = recording("watch/expired-and-odd-resource-versions")[case]
    if "request" not in exchange:
        return
    path = exchange["request"]["path"].replace("timeoutSeconds=3", "timeoutSeconds=0.2")
    create(cluster, job("watched"))
    if "continue token from" in case:
        cluster.run_pod("log-a")
        cluster.wait(lambda: len(cluster.events()) > 1)
        token = call(cluster, "GET", "/api/v1/namespaces/demo/events?limit=1").body["metadata"]["continue"]
        path = f"/api/v1/namespaces/demo/events?limit=1&continue={token}"
    cluster.compact()
    answer = call(cluster, "GET", path)
    expected = exchange.get("response", exchange)
    assert answer.status == expected["status"]
    if expected.get("events"):
        text = json.dumps(json.loads(answer.raw))
        told = json.dumps(expected["events"][0]["event"])
        assert re.sub(r"\(\d+\)", "(N)", text) == re.sub(r"\(\d+\)", "(N)", told)
    elif "events" in expected and expected["status"] == 200:
        assert answer.raw == b""
    elif expected["status"] != 200:
        answer.body = json.loads(answer.raw)
        neutral = [
            re.sub(r'current: \d+|"continue": "[^"]*"', "x", json.dumps(body))
            for body in (answer.body, expected["body"])
        ]
        assert neutral[0] == neutral[1]
        assert answer.headers.get("Retry-After") == expected["headers"].get("Retry-After")
    else:
        assert answer.body["kind"] == expected["body"]["kind"]


def events_of(cluster, query, resource=JOBS):
    answer = call(cluster, "GET", f"{resource}?watch=true&{query}")
    lines = answer.raw.splitlines()
    return [json.loads(line) for line in lines]


def test_streams_of_watches(cluster):
    recorded = recording("watch/streams")
    cluster.stop_operator()
    cluster.server.operator_runs = True
    create(cluster, job("watched"))
    create(cluster, job("other"))
    name = "fieldSelector=metadata.name%3Dwatched"
    version = call(cluster, "GET", JOBS).body["metadata"]["resourceVersion"]

    def kinds(query):
        return [(event["type"], event["object"]["metadata"].get("name")) for event in events_of(cluster, query)]

    def expected(case):
        return [
            (each["event"]["type"], each["event"]["object"]["metadata"].get("name"))
            for each in recorded[case]["events"]
        ]

    assert kinds(f"timeoutSeconds=0.2&{name}") == expected(
        "no resourceVersion: existing objects come first as ADDED"
    )
    assert kinds(f"timeoutSeconds=0.2&resourceVersion=0&{name}") == expected("resourceVersion=0")
    assert kinds(f"timeoutSeconds=0.2&resourceVersion={version}&{name}") == []
    initial = events_of(cluster, f"timeoutSeconds=0.2&sendInitialEvents=true&allowWatchBookmarks=true&{name}")
    assert [event["type"] for event in initial] == ["ADDED", "BOOKMARK"]
    told = recorded["sendInitialEvents=true"]["events"][1]["event"]["object"]
    assert without_chance(initial[1]["object"]) == without_chance(told)
    bookmarks = events_of(cluster, f"timeoutSeconds=2.1&resourceVersion={version}&allowWatchBookmarks=true&{name}")
    told = recorded["allowWatchBookmarks=true, timeoutSeconds=4"]["events"][0]["event"]["object"]
    assert [event["type"] for event in bookmarks] == ["BOOKMARK"]
    assert without_chance(bookmarks[0]["object"]) == without_chance(told)
    missing = recorded["watch by path of the object, GET .../pytorchjobs/NAME?watch=true"]
    answer = call(cluster, "GET", missing["request"]["path"])
    assert (answer.status, json.loads(answer.raw)) == (404, missing["body"])


def test_long_lists_come_in_pages(cluster):
    for number in range(5):
        cluster.run_pod(f"pod-{number}", labels={"even": str(number % 2 == 0).lower()})
    first = call(cluster, "GET", PODS + "?limit=2").body
    assert first["metadata"]["remainingItemCount"] == 3
    rest, token = [], first["metadata"]["continue"]
    while token:
        page = call(cluster, "GET", f"{PODS}?limit=2&continue={token}").body
        rest += page["items"]
        token = page["metadata"].get("continue")
        assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert [pod["metadata"]["name"] for pod in [*first["items"], *rest]] == [
        f"pod-{number}" for number in range(5)
    ]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("labelSelector=tier%3Da", ["one", "two"]),
        ("labelSelector=tier!%3Da", ["three"]),
        ("labelSelector=tier+in+(a,b),gpu", ["two"]),
        ("labelSelector=!gpu", ["one", "three"]),
        ("labelSelector=tier+notin+(a)", ["three"]),
        ("fieldSelector=metadata.name%3Done", ["one"]),
        ("fieldSelector=status.phase%3DRunning,spec.nodeName!%3Dnode0", []),
    ],
)
def test_selectors(cluster, selector, names):
    cluster.run_pod("one", labels={"tier": "a"})
    cluster.run_pod("two", labels={"tier": "a", "gpu": ""})
    cluster.run_pod("three", labels={"tier": "b"})
    items = call(cluster, "GET", f"{PODS}?{selector}").body["items"]
    assert sorted(pod["metadata"]["name"] for pod in items) == sorted(names)


def test_what_leaves_a_selection_is_deleted_from_it(cluster):
    pod = cluster.run_pod("watched", labels={"team": "a"})
    version = call(cluster, "GET", PODS).body["metadata"]["resourceVersion"]
    response = stream(cluster, f"{PODS}?watch=true&labelSelector=team%3Da&resourceVersion={version}")
    body = {"metadata": {"labels": {"team": "b"}}}
    call(cluster, "PATCH", f"{PODS}/{pod.name}", body, content_type="application/merge-patch+json")
    event = json.loads(response.readline())
    assert (event["type"], event["object"]["metadata"]["labels"]) == ("DELETED", {"team": "b"})


def test_a_watch_survives_a_compaction(cluster):
    version = call(cluster, "GET", PODS).body["metadata"]["resourceVersion"]
    response = stream(cluster, f"{PODS}?watch=true&resourceVersion={version}")
    cluster.compact()
    cluster.run_pod("late")
    assert json.loads(response.readline())["object"]["metadata"]["name"] == "late"
    old = events_of(cluster, f"resourceVersion={version}", PODS)
    assert (old[0]["type"], old[0]["object"]["code"]) == ("ERROR", 410)


# Accidents


def test_streams_that_break(cluster):
    pod = cluster.run_pod("log-a", lines=["first"])
    responses = [stream(cluster, PODS + "/log-a/log?follow=true"), stream(cluster, PODS + "?watch=true")]
    assert responses[0].readline() == b"first\n"
    assert responses[1].readline()
    assert cluster.cut_streams() == 2
    for response in responses:
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            response.read()
    cluster.cut_logs(after_bytes=8)
    response = stream(cluster, PODS + "/log-a/log?follow=true")
    pod.log("second")
    with pytest.raises(http.client.IncompleteRead) as broken:
        response.read()
    assert broken.value.partial == b"first\nse"
    pod.end()
    assert call(cluster, "GET", PODS + "/log-a/log?follow=true").body == "first\nsecond\n"


def test_planned_answers(cluster):
    cluster.fail(status=503, times=2, method="GET", path="pytorchjobs$", headers={"Retry-After": "1"})
    answers = [call(cluster, "GET", JOBS) for _ in range(3)]
    assert [answer.status for answer in answers] == [503, 503, 200]
    assert answers[0].headers["Retry-After"] == "1"
    cluster.fail(status=0, method="POST", after=True)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        call(cluster, "POST", JOBS, job())
    assert cluster.job("job") is not None
    cluster.fail(status=429, body="slow down")
    assert call(cluster, "GET", JOBS).body == "slow down"
    assert [(each.method, each.path) for each in cluster.requests[:2]] == [("GET", JOBS), ("GET", JOBS)]
    assert cluster.requests[3].body["metadata"]["name"] == "job"


# Processes


def test_the_environment_of_a_process(cluster):
    cluster.add_secret("hub", {"token": "s3cret"})
    cluster.add_config_map("settings", {"COLOR": "red"})
    variables = [
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        {"name": "MISSING", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "none", "optional": True}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "INDEX", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['index']"}}},
        {"name": "TWICE", "value": "$(NODE) $(NODE) $$(NODE) $(NOTHING)"},
    ]
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    run = {
        "name": "pytorch",
        "image": "registry.local/image:1",
        "command": ["python", "-c", code],
        "env": variables,
        "envFrom": [{"configMapRef": {"name": "settings"}}],
    }
    cluster.run_pod("env", ["true"], containers=[run], labels={"index": "7"})
    cluster.wait(lambda: cluster.pods()[0]["status"]["phase"] == "Succeeded")
    seen = json.loads(cluster.pod_log("env"))
    assert (seen["HF_TOKEN"], seen["NODE"], seen["INDEX"], seen["COLOR"]) == ("s3cret", "node0", "7", "red")
    assert (seen["TWICE"], seen["HOSTNAME"]) == ("node0 node0 $(NODE) $(NOTHING)", "env")
    assert "MISSING" not in seen
    assert "PYTEST_CURRENT_TEST" not in seen


@pytest.mark.slow
def test_a_job_computes_over_several_nodes(cluster, tmp_path):
    """Two nodes of two ranks meet through the operator's variables alone."""
    script = tmp_path / "sum.py"
    script.write_text(
        textwrap.dedent("""
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        value = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(value)
        print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {value.item()}", flush=True)
        dist.barrier()
        dist.destroy_process_group()
        """)
    )
    body = job("sum")
    container(body)["command"] = ["python", "-m", "torch.distributed.run", str(script)]
    create(cluster, body)
    follow_job(cluster, "sum", timeout=60)
    said = "".join(cluster.pod_log(pod["metadata"]["name"]) for pod in cluster.pods("sum"))
    assert re.search(r"rank \d of 4: 10\.0", said)


def test_no_process_outlives_the_cluster(tmp_path):
    """Neither when it is closed, nor when the program that runs it is killed."""
    program = [sys.executable, "-m", "tests.doubles.cluster", str(tmp_path / "cluster")]
    for number in (signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(
            program, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
        ) as process:
            kubeconfig = json.loads(Path(process.stdout.readline().strip()).read_text())
            server = kubeconfig["clusters"][0]["cluster"]["server"]
            marker = f"orphan-{process.pid}"
            away = f"setsid sh -c 'echo {marker}; sleep 60' & sleep 60"
            remote = SimpleNamespace(
                server=SimpleNamespace(http=SimpleNamespace(port=int(server.rsplit(":", 1)[1]))),
                token=kubeconfig["users"][0]["user"]["token"],
            )
            create(remote, job("orphans", away, workers=1))
            wait_for(
                lambda remote=remote, marker=marker: (
                    marker in str(call(remote, "GET", PODS + "/orphans-worker-0/log").body)
                )
            )
            assert len(processes_with(marker)) >= 2
            process.send_signal(number)
            process.wait(10)
        wait_for(lambda marker=marker: not processes_with(marker))


def processes_with(text):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text in (entry / "cmdline").read_text() and int(entry.name) != os.getpid():
                found.append(entry.name)
        except OSError:
            continue
    return found


def wait_for(condition, timeout=10):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


# The Python client


def test_the_real_client_understands_all_of_it(cluster):
    """What the client returns and raises, as it was recorded."""
    api_client = config.new_client_from_config(str(cluster.kubeconfig))
    jobs, core = client.CustomObjectsApi(api_client), client.CoreV1Api(api_client)
    where = ("kubeflow.org", "v1", "demo", "pytorchjobs")
    jobs.create_namespaced_custom_object(*where, job("client", "echo '{\"step\": 1}'", clean="None"))
    for event in watch.Watch().stream(jobs.list_namespaced_custom_object, *where, timeout_seconds=10):
        if any(each["type"] == "Succeeded" for each in event["object"].get("status", {}).get("conditions", [])):
            break
    name = cluster.wait(lambda: [pod for pod in cluster.pods() if pod["status"]["phase"] == "Succeeded"])[0]
    name = name["metadata"]["name"]
    assert core.read_namespaced_pod_log(name, "demo") == "{'step': 1}"
    raw = core.read_namespaced_pod_log(name, "demo", _preload_content=False)
    assert raw.data == b'{"step": 1}\n'
    pod = core.read_namespaced_pod(name, "demo")
    assert pod.status.container_statuses[0].state.terminated.exit_code == 0
    assert core.list_namespaced_event("demo", field_selector=f"involvedObject.name={name}").items
    assert core.list_node().items[0].status.allocatable["pods"] == "110"
    with pytest.raises(client.ApiException) as refused:
        jobs.patch_namespaced_custom_object(*where, "client", [{"op": "remove", "path": "/metadata/labels"}])
    assert "error decoding patch" in refused.value.body
    cluster.compact()
    with pytest.raises(client.ApiException) as expired:
        list(watch.Watch().stream(jobs.list_namespaced_custom_object, *where, resource_version="1"))
    assert (expired.value.status, "too old resource version" in expired.value.reason) == (410, True)
    deleted = jobs.delete_namespaced_custom_object(*where, "client", propagation_policy="Foreground")
    assert deleted["metadata"]["finalizers"] == ["foregroundDeletion"]
    core.delete_namespaced_pod(name, "demo")
    cluster.wait(lambda: cluster.job("client") is None)


# TrainJobs


TRAIN_JOBS = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/demo/trainjobs"


def train_job(name="train", command="true", nodes=2, **trainer):
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": "registry.local/image:1",
                "command": ["sh", "-c", command],
                "numNodes": nodes,
                "numProcPerNode": 2,
                **trainer,
            },
        },
    }


@pytest.fixture
def trainer(cluster):
    cluster.uninstall("kubeflow.org")
    cluster.install("trainer.kubeflow.org")
    return cluster


def test_which_kinds_are_installed(trainer):
    assert call(trainer, "GET", JOBS).body == "404 page not found\n"
    assert call(trainer, "GET", "/apis/kubeflow.org/v1").status == 404
    assert call(trainer, "GET", TRAIN_JOBS).body["kind"] == "TrainJobList"
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert call(trainer, "GET", f"{definitions}/trainjobs.trainer.kubeflow.org").status == 200
    assert call(trainer, "GET", f"{definitions}/pytorchjobs.kubeflow.org").status == 404


def test_a_trainjob_runs_to_its_end(trainer):
    say = "echo $PET_NODE_RANK of $PET_NNODES with $PET_NPROC_PER_NODE at $PET_MASTER_ADDR as $HOSTNAME"
    answer = call(trainer, "POST", TRAIN_JOBS, train_job(command=say))
    assert (answer.status, answer.body["spec"]["suspend"]) == (201, False)
    follow_job(trainer, "train", "Complete")
    logs = sorted(trainer.pod_log(pod["metadata"]["name"]) for pod in trainer.pods("train"))
    assert logs == [f"{rank} of 2 with 2 at 127.0.0.1 as train-node-0-{rank}\n" for rank in (0, 1)]
    shown = {each["name"]: each.get("value") for each in trainer.pods("train")[0]["spec"]["containers"][0]["env"]}
    assert (shown["PET_MASTER_ADDR"], shown["PET_MASTER_PORT"]) == ("train-node-0-0.train", "29500")
    status = trainer.job("train")["status"]
    assert status["jobsStatus"] == [
        {"name": "node", "ready": 0, "succeeded": 1, "failed": 0, "active": 0, "suspended": 0}
    ]


def test_a_trainjob_fails_with_its_first_pod(trainer):
    stay = "trap 'exit 143' TERM; echo up; while true; do sleep 0.05; done"
    call(trainer, "POST", TRAIN_JOBS, train_job(command=f"test $PET_NODE_RANK = 1 && exit 3; {stay}"))
    follow_job(trainer, "train", "Failed")
    failed = trainer.job("train")["status"]["conditions"][-1]
    assert (failed["reason"], failed["message"]) == (
        "FailedJobs",
        "jobset failed due to one or more job failures (first failed job: train-node-0)",
    )
    trainer.wait(lambda: [pod["status"]["phase"] for pod in trainer.pods()] == ["Failed"])


def test_a_queued_trainjob(trainer):
    trainer.add_queue("team")
    body = train_job()
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    call(trainer, "POST", TRAIN_JOBS, body)
    trainer.wait(lambda: conditions(trainer, "train") == ["Suspended"])
    trainer.admit("train")
    follow_job(trainer, "train", "Complete")
    assert conditions(trainer, "train") == ["-Suspended", "Complete"]


def test_what_trainer_refuses(trainer):
    unknown = train_job()
    unknown["spec"]["runtimeRef"]["name"] = "none"
    answer = call(trainer, "POST", TRAIN_JOBS, unknown)
    assert (answer.status, "must be created before the TrainJob" in answer.body["message"]) == (403, True)
    reserved = train_job(env=[{"name": "PET_NNODES", "value": "3"}])
    answer = call(trainer, "POST", TRAIN_JOBS, reserved)
    assert (answer.status, "[PET_NNODES]" in answer.body["message"]) == (403, True)
    answer = call(trainer, "POST", TRAIN_JOBS + "?fieldValidation=Strict", train_job(numGpus=1))
    assert (answer.status, 'unknown field "spec.trainer.numGpus"' in answer.body["message"]) == (400, True)
    twice = train_job(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}])
    answer = call(trainer, "POST", TRAIN_JOBS, twice)
    assert (answer.status, answer.body["details"]["causes"][0]["field"]) == (422, "spec.trainer.env[1]")
    answer = call(trainer, "POST", TRAIN_JOBS, train_job(numProcPerNode="2"))
    assert (answer.status, answer.body["details"]["causes"][0]["field"]) == (422, "spec.trainer.numProcPerNode")


def test_patches_of_a_runtime_reach_the_pods(trainer):
    patch = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "volumes": [{"name": "store", "persistentVolumeClaim": {"claimName": "store"}}],
            "containers": [{"name": "node", "volumeMounts": [{"name": "store", "mountPath": "/store"}]}],
        },
    }
    jobs = [{"name": "node", "template": {"spec": {"template": patch}}}]
    body = train_job(resourcesPerNode={"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}})
    template = {"spec": {"replicatedJobs": jobs}}
    body["spec"]["runtimePatches"] = [{"manager": "example.com/x", "trainingRuntimeSpec": {"template": template}}]
    trainer.add_claim("store")
    trainer.add_node("node1", gpus=2, labels={"disk": "ssd"})
    answer = call(trainer, "POST", TRAIN_JOBS + "?fieldValidation=Strict", body)
    assert answer.status == 201
    follow_job(trainer, "train", "Complete")
    pod = trainer.pods("train")[0]
    assert (pod["spec"]["nodeName"], pod["metadata"]["labels"]["team"]) == ("node1", "a")
    assert {"name": "store", "mountPath": "/store"} in pod["spec"]["containers"][0]["volumeMounts"]
