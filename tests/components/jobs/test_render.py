"""The manifests of jobs.

`golden/<spec>-<kind>.yaml` are what three specs become. After a change that is meant, write them anew and read the
difference: `SHARDLINE_WRITE_GOLDEN=1 pytest tests/components/jobs/test_render.py`.
"""

import copy
import dataclasses
import json
import os
import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator
from kubernetes.client import ApiException

from components.cluster.client import connect
from components.cluster.kinds import KINDS
from components.jobs.describe import TaskSettings, describe_job
from components.jobs.job import PodSettings, Scheduling, TrainingJob
from components.jobs.render.pytorchjob import render_pytorchjob
from components.jobs.render.trainjob import render_trainjob
from tests.doubles.cluster import FakeCluster
from training.resolve import resolve
from training.run_folder import RunFolder

GOLDEN = Path(__file__).parent / "golden"
RENDER = {"pytorchjob": render_pytorchjob, "trainjob": render_trainjob}
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "train-pod", "uid": "0f7c2b4e-2d0e-4b53-9f0a-3b5f7c1d9e11"}
GPU_NODES = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
            ]
        }
    },
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": {"topologyKey": "rack", "labelSelector": {"matchLabels": {"a": "b"}}}}
        ]
    },
}
TASK = TaskSettings(
    tolerations=[{"key": "spot", "operator": "Exists"}],
    node_selector={"pool": "training"},
    env=[
        {"name": "HF_HOME", "value": "/cache/hf"},
        {"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "api-key"}}},
    ],
    volumes=[
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "ca", "configMap": {"name": "ca"}},
    ],
    volume_mounts=[
        {"name": "data", "mountPath": "/mnt", "subPath": "store"},
        {"name": "data", "mountPath": "/cache", "subPath": "cache"},
        {"name": "ca", "mountPath": "/etc/ca", "readOnly": True},
    ],
    resources={"limits": {"cpu": "96"}, "requests": {"cpu": "90"}},
)


def job(cluster, task=None, attempt=1, **options):
    cluster = {"image": "registry.local/shardline:1", **cluster}
    training = {"global_batch_size": 48}
    sections = {"parallel": options.pop("parallel", {}), "cluster": cluster, "training": training}
    config = resolve({"model": {"name": "org/model"}, "data": {"train": "org/data"}, **sections})
    described = describe_job(config, RunFolder("/mnt/store", "a-run"), attempt, task, **options)
    return dataclasses.replace(described, run_id="3f2a9c0d1b7e5a64")


MINIMAL = job({"store_claim": "store", "gpus_per_node": 0}, parallel={"procs_per_node": 2})
EFA = job(
    {
        "store_claim": "fsx",
        "gpus_per_node": 8,
        "efa_per_node": 32,
        "cpus_per_node": 180,
        "memory_per_node": "1900Gi",
        "resources": {"hugepages-2Mi": "5120Mi"},
        "node_selector": {"node.kubernetes.io/instance-type": "p5.48xlarge"},
        "metrics_port": 9400,
    },
    parallel={"num_nodes": 2},
)
FULL = job(
    {
        "gpus_per_node": 4,
        "memory_per_node": "256Gi",
        "shared_memory": "64Gi",
        "image_pull_secrets": ["regcred", "mirror"],
        "service_account": "trainer",
        "env": {"NCCL_DEBUG": "INFO"},
        "secrets": {"HF_TOKEN": "hugging-face/token"},
        "node_selector": {"accelerator": "h100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": GPU_NODES,
        "labels": {"team": "nlp", "app.kubernetes.io/name": "theirs"},
        "annotations": {"example.com/cost-center": "42"},
        "queue": "team-a",
        "gang": "coscheduling",
        "priority_class": "high",
        "rendezvous": "etcd",
        "etcd_endpoint": "etcd.demo.svc:2379",
        "hyperpod_max_retries": 3,
        "grace_s": 120,
        "ttl_s": 3600,
    },
    TASK,
    attempt=2,
    parallel={"num_nodes": 3, "procs_per_node": 4},
    owner=OWNER,
    excluded_hosts=("node-9", "node-10"),
)
SPECS = {"minimal-cpu": MINIMAL, "two-nodes-efa": EFA, "everything": FULL}
ALL = [(spec, kind) for spec in SPECS for kind in RENDER]
all_manifests = pytest.mark.parametrize("spec, kind", ALL, ids=[f"{spec}-{kind}" for spec, kind in ALL])


def manifest(spec, kind):
    return RENDER[kind](SPECS[spec], "demo")


def pod_of(rendered):
    """A job's pod template, as a Pod: of a TrainJob what the trainer and the patch say together."""
    spec = rendered["spec"]
    if rendered["kind"] == "PyTorchJob":
        template = spec["pytorchReplicaSpecs"]["Worker"]["template"]
    else:
        (patch,) = spec["runtimePatches"]
        (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        patched = node["template"]["spec"]["template"]
        (container,) = patched["spec"]["containers"]
        trainer = spec["trainer"]
        own = {key: trainer[key] for key in ("image", "command", "env") if key in trainer}
        own |= {"resources": trainer["resourcesPerNode"]} if "resourcesPerNode" in trainer else {}
        template = {**patched, "spec": {**patched["spec"], "containers": [{**container, **own}]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", **template["metadata"]},
        "spec": template["spec"],
    }


def env_of(rendered):
    (container,) = pod_of(rendered)["spec"]["containers"]
    return {entry["name"]: entry for entry in container["env"]}


# Golden files


@all_manifests
def test_a_manifest_is_as_it_was(spec, kind):
    path = GOLDEN / f"{spec}-{kind}.yaml"
    rendered = manifest(spec, kind)
    if os.environ.get("SHARDLINE_WRITE_GOLDEN"):
        # Through JSON, so that nothing is written as a reference.
        path.write_text(yaml.safe_dump(json.loads(json.dumps(rendered)), sort_keys=False))
    assert rendered == yaml.safe_load(path.read_text())


def test_every_golden_file_belongs_to_a_manifest():
    assert {path.name for path in GOLDEN.iterdir()} == {f"{spec}-{kind}.yaml" for spec, kind in ALL}


@all_manifests
def test_rendering_is_pure(spec, kind):
    before = copy.deepcopy(SPECS[spec])
    first = manifest(spec, kind)
    assert manifest(spec, kind) == first
    assert SPECS[spec] == before


# What a cluster takes


def closed(required, optional=()):
    """A schema of an object that has these fields and no other."""
    known = {**required, **dict(optional)}
    return {"type": "object", "properties": known, "required": list(required), "additionalProperties": False}


def listed(items, most=None):
    return {"type": "array", "items": items, **({"maxItems": most} if most else {})}


ANY, TEXT = {}, {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 0}
NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
LABELS = {
    "type": "object",
    "propertyNames": {"pattern": r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"},
    "additionalProperties": {"type": "string", "pattern": "^([A-Za-z0-9][A-Za-z0-9_.-]*)?$", "maxLength": 63},
}
ANNOTATIONS = {"type": "object", "additionalProperties": {"type": "string"}}
METADATA = closed(
    {"name": NAME, "namespace": TEXT, "labels": LABELS},
    {"annotations": ANNOTATIONS, "ownerReferences": listed(ANY)},
)
TEMPLATE_METADATA = closed({"labels": LABELS, "annotations": ANNOTATIONS})

# As the types of training-operator 1.9 have it (pkg/apis/kubeflow.org/v1).
PYTORCHJOB = closed(
    {
        "apiVersion": {"const": "kubeflow.org/v1"},
        "kind": {"const": "PyTorchJob"},
        "metadata": METADATA,
        "spec": closed(
            {
                "nprocPerNode": {"type": "string", "pattern": "^[1-9][0-9]*$"},
                "pytorchReplicaSpecs": closed(
                    {
                        "Worker": closed(
                            {
                                "replicas": COUNT,
                                "restartPolicy": {"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
                                "template": closed({"metadata": TEMPLATE_METADATA, "spec": ANY}),
                            }
                        )
                    }
                ),
            },
            {
                "elasticPolicy": closed(
                    {},
                    {
                        **dict.fromkeys(("minReplicas", "maxReplicas", "maxRestarts"), COUNT),
                        "rdzvBackend": {"enum": ["c10d", "etcd", "etcd-v2"]},
                        "rdzvPort": {"type": "integer", "minimum": 1, "maximum": 65535},
                        "rdzvHost": TEXT,
                        "rdzvId": TEXT,
                    },
                ),
                "runPolicy": closed(
                    {},
                    {
                        "cleanPodPolicy": {"enum": ["All", "Running", "None"]},
                        **dict.fromkeys(
                            ("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"), COUNT
                        ),
                        "schedulingPolicy": closed(
                            {}, {"minAvailable": COUNT, "queue": TEXT, "priorityClass": TEXT, "minResources": ANY}
                        ),
                    },
                ),
            },
        ),
    }
)

# As the types of Kubeflow Trainer have it (pkg/apis/trainer/v1alpha1). A patch has fewer fields than a pod; the
# environment of the container `node` is set by `trainer.env` only.
POD_PATCH = closed(
    {},
    {
        "serviceAccountName": TEXT,
        "volumes": listed(ANY, 128),
        "containers": listed(
            closed({"name": TEXT}, {"volumeMounts": listed(ANY, 128), "securityContext": ANY}),
            64,
        ),
        "imagePullSecrets": listed(ANY, 64),
        "securityContext": ANY,
        "nodeSelector": ANY,
        "affinity": ANY,
        "tolerations": listed(ANY, 128),
        "schedulingGates": listed(ANY, 16),
    },
)
JOB_PATCH = closed({"spec": closed({"template": closed({"metadata": TEMPLATE_METADATA, "spec": POD_PATCH})})})
PATCHED_JOBS = listed(closed({"name": NAME}, {"template": JOB_PATCH}))
RUNTIME_PATCH = closed({"template": closed({"spec": closed({"replicatedJobs": PATCHED_JOBS})})})
TRAINJOB = closed(
    {
        "apiVersion": {"const": "trainer.kubeflow.org/v1alpha1"},
        "kind": {"const": "TrainJob"},
        "metadata": METADATA,
        "spec": closed(
            {"runtimeRef": closed({"name": TEXT}, {"apiGroup": TEXT, "kind": TEXT})},
            {
                "trainer": closed(
                    {},
                    {
                        "image": {**TEXT, "maxLength": 500},
                        "command": listed(TEXT, 128),
                        "args": listed(TEXT, 128),
                        "env": listed(ANY, 128),
                        "numNodes": COUNT,
                        "numProcPerNode": COUNT,
                        "resourcesPerNode": ANY,
                    },
                ),
                "runtimePatches": listed(
                    closed({"manager": {**TEXT, "maxLength": 253}, "trainingRuntimeSpec": RUNTIME_PATCH}), 16
                ),
            },
        ),
    }
)
SCHEMAS = {"pytorchjob": PYTORCHJOB, "trainjob": TRAINJOB}


@all_manifests
def test_a_manifest_has_only_fields_that_its_kind_knows(spec, kind):
    Draft202012Validator(SCHEMAS[kind]).validate(manifest(spec, kind))


@pytest.mark.parametrize("version", ["1.32", "1.36"])
@all_manifests
def test_its_pods_have_only_fields_that_kubernetes_knows(spec, kind, version):
    kubernetes_validate.validate(pod_of(manifest(spec, kind)), version, strict=True)


@all_manifests
def test_names_within_a_list_are_not_repeated(spec, kind):
    spec = pod_of(manifest(spec, kind))["spec"]
    (container,) = spec["containers"]
    lists = [container["env"], spec["volumes"], spec.get("imagePullSecrets", []), container.get("ports", [])]
    names = [[item["name"] for item in items] for items in lists]
    names.append([mount["mountPath"] for mount in container["volumeMounts"]])
    # Of a patch also a volume may be mounted once only.
    if kind == "trainjob":
        names.append([mount["name"] for mount in container["volumeMounts"]])
    for items in names:
        assert len(items) == len(set(items))
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with FakeCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.install("trainer.kubeflow.org")
        yield cluster


def create(cluster, monkeypatch, rendered):
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    kind = next(kind for kind in KINDS.values() if kind.kind == rendered["kind"])
    return connect().custom.create_namespaced_custom_object(
        kind.group, kind.version, "demo", kind.plural, rendered, dry_run="All", field_validation="Strict"
    )


@all_manifests
def test_a_cluster_takes_it_without_a_warning(cluster, monkeypatch, spec, kind):
    created = create(cluster, monkeypatch, manifest(spec, kind))
    assert created["metadata"]["name"] == SPECS[spec].name
    assert cluster.job(SPECS[spec].name) is None


def test_a_cluster_would_have_refused_a_field_that_it_does_not_know(cluster, monkeypatch):
    rendered = manifest("minimal-cpu", "pytorchjob")
    rendered["spec"]["runPolicy"]["cleanPodPolicie"] = "None"
    with pytest.raises(ApiException) as caught:
        create(cluster, monkeypatch, rendered)
    assert caught.value.status == 400


# What must hold of every manifest

ALLOWED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
}


@all_manifests
def test_its_pods_keep_to_the_pod_security_level_restricted(spec, kind):
    spec = pod_of(manifest(spec, kind))["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    for volume in spec["volumes"]:
        assert set(volume) - {"name"} <= ALLOWED_VOLUMES
    for container in spec["containers"]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert not {"privileged", "runAsUser", "procMount"} & set(security)
        assert not any("hostPort" in port for port in container.get("ports", []))


def test_a_machine_with_gpus_is_checked_in_an_init_container_with_the_same_devices():
    spec = pod_of(manifest("two-nodes-efa", "pytorchjob"))["spec"]
    (init,), (main,) = spec["initContainers"], spec["containers"]
    gpus = main["resources"]["limits"]["nvidia.com/gpu"]
    run = "/mnt/store/runs/a-run"
    assert init["command"] == ["python", "-m", "training.health", "--run", run, "--gpus", gpus]
    for field in ("image", "env", "resources", "volumeMounts", "securityContext"):
        assert init[field] == main[field]
    # Without GPUs there is little to check, and a TrainJob's runtime patch cannot add one.
    assert "initContainers" not in pod_of(manifest("minimal-cpu", "pytorchjob"))["spec"]
    assert "initContainers" not in pod_of(manifest("two-nodes-efa", "trainjob"))["spec"]


def test_no_init_container_where_checks_are_switched_off():
    sections = {
        "model": {"name": "m"},
        "data": {"train": "d"},
        "cluster": {"store_claim": "s", "gpus_per_node": 8},
    }
    config = resolve({**sections, "resilience": {"health_checks": False}})
    described = describe_job(config, RunFolder("/mnt/store", "a-run"), 1)
    assert described.pods.health_command == ()
    assert "initContainers" not in pod_of(render_pytorchjob(described, "demo"))["spec"]


@all_manifests
def test_each_node_is_one_container_that_runs_the_training_program(spec, kind):
    rendered = manifest(spec, kind)
    (container,) = pod_of(rendered)["spec"]["containers"]
    assert container["name"] == KINDS[kind].container
    assert container["command"] == ["python", "-m", "training.node", "/mnt/store/runs/a-run"]
    assert "args" not in container


@all_manifests
def test_a_node_has_memory_for_its_ranks_to_share_and_sees_the_store(spec, kind):
    spec_of_pod = pod_of(manifest(spec, kind))["spec"]
    mounts = {mount["mountPath"]: mount for mount in spec_of_pod["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec_of_pod["volumes"]}
    memory = volumes[mounts["/dev/shm"]["name"]]["emptyDir"]
    assert memory == {"medium": "Memory", **({"sizeLimit": "64Gi"} if spec == "everything" else {})}
    store = next(mount for path, mount in mounts.items() if "/mnt/store".startswith(path))
    assert "persistentVolumeClaim" in volumes[store["name"]]
    assert not store.get("readOnly")


@all_manifests
def test_secrets_are_references(spec, kind):
    credentials = {
        name: entry for name, entry in env_of(manifest(spec, kind)).items() if re.search("TOKEN|KEY", name)
    }
    assert set(credentials) == ({"HF_TOKEN", "WANDB_API_KEY"} if spec == "everything" else set())
    for entry in credentials.values():
        assert set(entry) == {"name", "valueFrom"}
        assert set(entry["valueFrom"]) == {"secretKeyRef"}


@all_manifests
def test_a_node_knows_its_attempt_its_place_and_that_it_has_a_launcher(spec, kind):
    env = env_of(manifest(spec, kind))
    assert env["SHARDLINE_ATTEMPT"]["value"] == str(SPECS[spec].attempt)
    assert env["SHARDLINE_WATCH_LAUNCHER"]["value"] == "1"
    place = env["SHARDLINE_NODE"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert place == f"metadata.labels['{KINDS[kind].node_label}']"
    assert env["SHARDLINE_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    # They are the operator's, and a TrainJob is refused for them.
    assert not any(name.startswith("PET_") for name in env)


@all_manifests
def test_jobs_and_pods_can_be_found_by_run_and_attempt(spec, kind):
    rendered = manifest(spec, kind)
    for labels in (rendered["metadata"]["labels"], pod_of(rendered)["metadata"]["labels"]):
        assert labels["shardline.dev/run"] == "a-run"
        assert labels["shardline.dev/run-id"] == "3f2a9c0d1b7e5a64"
        assert labels["shardline.dev/attempt"] == str(SPECS[spec].attempt)
        assert labels["app.kubernetes.io/name"] == "shardline"
    assert pod_of(rendered)["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
    assert rendered["metadata"]["name"] == SPECS[spec].name
    assert rendered["metadata"]["namespace"] == "demo"


@pytest.mark.parametrize("kind", RENDER)
def test_resources_are_requested_as_they_are_limited_unless_said_otherwise(kind):
    (container,) = pod_of(manifest("everything", kind))["spec"]["containers"]
    resources = container["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": "4", "cpu": "96", "memory": "256Gi"}
    assert resources["requests"] == {**resources["limits"], "cpu": "90"}
    (container,) = pod_of(manifest("minimal-cpu", kind))["spec"]["containers"]
    assert "resources" not in container


@pytest.mark.parametrize("kind", RENDER)
def test_each_alternative_of_an_affinity_leaves_the_excluded_machines_out(kind):
    affinity = pod_of(manifest("everything", kind))["spec"]["affinity"]
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    apart = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-10", "node-9"]}
    zones = [term["matchExpressions"][0]["values"] for term in terms]
    assert zones == [["a"], ["b"]]
    assert all(apart in term["matchExpressions"] for term in terms)
    assert affinity["podAntiAffinity"] == GPU_NODES["podAntiAffinity"]


@pytest.mark.parametrize("kind", RENDER)
def test_without_an_affinity_pods_keep_away_from_excluded_machines_and_those_that_hyperpod_gives_up(kind):
    excluded = dataclasses.replace(MINIMAL, pods=dataclasses.replace(MINIMAL.pods, excluded_hosts=("bad",)))
    affinity = pod_of(RENDER[kind](excluded, "demo"))["spec"]["affinity"]
    apart = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["bad"]}
    unfit = ["Unschedulable", "UnschedulablePendingReboot", "UnschedulablePendingReplacement"]
    healthy = {"key": "sagemaker.amazonaws.com/node-health-status", "operator": "NotIn", "values": unfit}
    required = {"nodeSelectorTerms": [{"matchExpressions": [healthy, apart]}]}
    assert affinity == {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def test_the_owner_is_the_step_that_made_the_job():
    for kind in RENDER:
        assert manifest("everything", kind)["metadata"]["ownerReferences"] == [OWNER]
        assert "ownerReferences" not in manifest("minimal-cpu", kind)["metadata"]


# PyTorchJob


@pytest.mark.parametrize("spec", SPECS)
def test_a_pytorchjob_has_a_fixed_number_of_workers_that_are_not_restarted(spec):
    rendered = manifest(spec, "pytorchjob")["spec"]
    elastic, worker = rendered["elasticPolicy"], rendered["pytorchReplicaSpecs"]["Worker"]
    nodes = SPECS[spec].num_nodes
    assert (elastic["minReplicas"], elastic["maxReplicas"], worker["replicas"]) == (nodes, nodes, nodes)
    assert worker["restartPolicy"] == "Never"
    assert "maxRestarts" not in elastic
    assert rendered["runPolicy"]["cleanPodPolicy"] == "Running"
    assert rendered["nprocPerNode"] == str(SPECS[spec].procs_per_node)


def test_nodes_meet_under_the_name_of_run_and_attempt():
    ids = [
        render_pytorchjob(job({"store_claim": "s", "gpus_per_node": 1}, attempt=n), "demo")["spec"][
            "elasticPolicy"
        ]["rdzvId"]
        for n in (1, 2)
    ]
    assert ids == ["a-run-1", "a-run-2"]


def test_nodes_meet_at_the_first_pod_or_at_an_etcd():
    first = manifest("two-nodes-efa", "pytorchjob")["spec"]["elasticPolicy"]
    assert first["rdzvBackend"] == "c10d"
    assert not {"rdzvHost", "rdzvPort"} & set(first)
    etcd = manifest("everything", "pytorchjob")["spec"]["elasticPolicy"]
    assert (etcd["rdzvBackend"], etcd["rdzvHost"], etcd["rdzvPort"]) == ("etcd-v2", "etcd.demo.svc", 2379)


@pytest.mark.parametrize(
    "settings, policy, label",
    [
        ({}, None, None),
        ({"queue": "q"}, None, "q"),
        ({"gang": "volcano", "queue": "q"}, {"minAvailable": 2, "queue": "q", "priorityClass": "p"}, None),
        ({"gang": "volcano"}, {"minAvailable": 2, "priorityClass": "p"}, None),
        ({"gang": "coscheduling", "queue": "q"}, {"minAvailable": 2, "priorityClass": "p"}, "q"),
    ],
)
def test_a_queue_is_kueues_or_volcanos(settings, policy, label):
    cluster = {"store_claim": "s", "gpus_per_node": 1, "priority_class": "p", **settings}
    rendered = render_pytorchjob(job(cluster, parallel={"num_nodes": 2}), "demo")
    assert rendered["spec"]["runPolicy"].get("schedulingPolicy") == policy
    assert rendered["metadata"]["labels"].get("kueue.x-k8s.io/queue-name") == label


@pytest.mark.parametrize(
    "ttl, expected", [(None, {}), (0, {"ttlSecondsAfterFinished": 0}), (5, {"ttlSecondsAfterFinished": 5})]
)
def test_a_job_is_removed_after_its_time_or_never(ttl, expected):
    rendered = render_pytorchjob(job({"store_claim": "s", "gpus_per_node": 1, "ttl_s": ttl}), "demo")
    assert rendered["spec"]["runPolicy"] == {"cleanPodPolicy": "Running", **expected}


def test_hyperpod_is_asked_for_automatic_resume_on_the_job():
    annotations = manifest("everything", "pytorchjob")["metadata"]["annotations"]
    assert annotations["sagemaker.amazonaws.com/enable-job-auto-resume"] == "true"
    assert annotations["sagemaker.amazonaws.com/job-max-retry-count"] == "3"
    assert "sagemaker.amazonaws.com/enable" not in yaml.safe_dump(manifest("two-nodes-efa", "pytorchjob"))


def test_ranks_cannot_talk_to_the_cluster():
    spec = pod_of(manifest("everything", "pytorchjob"))["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == "trainer"


def test_the_port_of_the_metrics_stands_beside_that_of_the_rendezvous():
    (container,) = pod_of(manifest("two-nodes-efa", "pytorchjob"))["spec"]["containers"]
    assert container["ports"] == [
        {"name": "pytorchjob-port", "containerPort": 23456},
        {"name": "metrics", "containerPort": 9400},
    ]
    (container,) = pod_of(manifest("minimal-cpu", "pytorchjob"))["spec"]["containers"]
    assert "ports" not in container


# TrainJob


@pytest.mark.parametrize("spec", SPECS)
def test_a_trainjob_has_the_same_nodes_and_ranks(spec):
    trainer = manifest(spec, "trainjob")["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (SPECS[spec].num_nodes, SPECS[spec].procs_per_node)


def test_a_trainjob_has_its_queue_as_a_label():
    assert manifest("everything", "trainjob")["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert "kueue.x-k8s.io/queue-name" not in manifest("minimal-cpu", "trainjob")["metadata"]["labels"]


def test_a_volume_that_is_mounted_twice_is_two_volumes_in_a_patch():
    spec = pod_of(manifest("everything", "trainjob"))["spec"]
    mounts = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert (mounts["/mnt"]["name"], mounts["/cache"]["name"]) == ("data", "data-2")
    assert volumes["data-2"]["persistentVolumeClaim"] == volumes["data"]["persistentVolumeClaim"]
    assert (mounts["/mnt"]["subPath"], mounts["/cache"]["subPath"]) == ("store", "cache")


# By hand


def test_a_job_without_settings_of_its_own_is_rendered(tmp_path):
    bare = TrainingJob("a-1", tmp_path / "runs/a", 1, 1, 1, pods=PodSettings("image"), scheduling=Scheduling())
    for kind, render in RENDER.items():
        rendered = render(bare, "demo")
        Draft202012Validator(SCHEMAS[kind]).validate(rendered)
        kubernetes_validate.validate(pod_of(rendered), "1.36", strict=True)
