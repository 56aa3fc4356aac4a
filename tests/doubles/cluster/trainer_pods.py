"""What Trainer, JobSet and the Job controller make of a TrainJob: pods and a service."""

import copy
import secrets

from tests.doubles.cluster.owned import owned_metadata
from tests.doubles.cluster.scheduler import quantity

PORT = 29500
INDEX = "batch.kubernetes.io/job-completion-index"
JOB_SET = "jobset.sigs.k8s.io/jobset-name"
RESERVED = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")


def runtime(name):
    """The runtime for torchrun.

    As it is shipped, containers that fail are started again, six times (JobSet's and the Job's defaults); the
    double runs them once, so its runtime says so.
    """
    container = {"name": "node", "image": "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime"}
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"backoffLimit": 0, "template": pod},
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name, "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"}},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}},
        },
    }


def number_of_nodes(job, runtime):
    return job["spec"].get("trainer", {}).get("numNodes", runtime["spec"]["mlPolicy"].get("numNodes", 1))


def pod_of(job, runtime, index):
    """The pod of one node."""
    name, trainer = job["metadata"]["name"], job["spec"].get("trainer", {})
    template = copy.deepcopy(
        runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    )
    spec, metadata = template["spec"], template.setdefault("metadata", {})
    for patch in _pod_patches(job):
        for key in ("labels", "annotations"):
            metadata.setdefault(key, {}).update(patch.get("metadata", {}).get(key, {}))
        _patch_spec(spec, patch.get("spec", {}))
    container = next(each for each in spec["containers"] if each["name"] == "node")
    for key in ("image", "command", "args"):
        if key in trainer:
            container[key] = trainer[key]
    if "resourcesPerNode" in trainer:
        container["resources"] = copy.deepcopy(trainer["resourcesPerNode"])
    container["env"] = _environment(job, runtime, container)
    container.setdefault("ports", []).append({"containerPort": PORT})
    spec |= {"hostname": f"{name}-node-0-{index}", "subdomain": name}
    labels = {
        **metadata.get("labels", {}),
        JOB_SET: name,
        "jobset.sigs.k8s.io/replicatedjob-name": "node",
        "jobset.sigs.k8s.io/job-index": "0",
        "batch.kubernetes.io/job-name": f"{name}-node-0",
        INDEX: str(index),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **owned_metadata(job, f"{name}-node-0-{index}-{secrets.token_hex(3)[:5]}", labels),
            "annotations": {**metadata.get("annotations", {}), INDEX: str(index)},
        },
        "spec": spec,
    }


def service_of(job):
    """The headless service that gives pods their names."""
    name = job["metadata"]["name"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned_metadata(job, name, {}),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {JOB_SET: name}},
    }


def _environment(job, runtime, container):
    name = job["metadata"]["name"]
    index = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{INDEX}']"}}
    own = [*container.get("env", []), *job["spec"].get("trainer", {}).get("env", [])]
    torch = [
        {"name": "PET_NNODES", "value": str(number_of_nodes(job, runtime))},
        {"name": "PET_NPROC_PER_NODE", "value": _processes(job, runtime)},
        {"name": "PET_NODE_RANK", "valueFrom": index},
        {"name": "PET_MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
        {"name": "PET_MASTER_PORT", "value": str(PORT)},
        {"name": "JOB_COMPLETION_INDEX", "valueFrom": index},
    ]
    return list({variable["name"]: variable for variable in [*own, *torch]}.values())


def _processes(job, runtime):
    """The number of processes, as Trainer finds it: limits without requests give one, whatever was asked for."""
    trainer = job["spec"].get("trainer", {})
    wanted = str(trainer.get("numProcPerNode", runtime["spec"]["mlPolicy"]["torch"].get("numProcPerNode", "auto")))
    resources = trainer.get("resourcesPerNode")
    if resources is None:
        return wanted
    for part in ("limits", "requests"):
        amounts = resources.get(part)
        has_gpu = any("gpu" in name.lower() for name in amounts or {})
        if amounts is not None and ((wanted == "auto" and not has_gpu) or (wanted == "cpu" and "cpu" in amounts)):
            return str(max(1, int(quantity(amounts.get("cpu", "0")))))
    if resources.get("requests") is None:
        return "1"
    return "1" if wanted == "cpu" else wanted


def _pod_patches(job):
    for patch in job["spec"].get("runtimePatches", []):
        template = patch.get("trainingRuntimeSpec", {}).get("template", {})
        for each in template.get("spec", {}).get("replicatedJobs", []):
            if each["name"] == "node":
                yield each.get("template", {}).get("spec", {}).get("template", {})


def _patch_spec(spec, patch):
    for key, value in patch.items():
        if key == "containers":
            for container in value:
                target = next(each for each in spec["containers"] if each["name"] == container["name"])
                for field, items in container.items():
                    if isinstance(items, list):
                        target[field] = _by_name(target.get(field, []), items)
                    else:
                        target[field] = items
        elif key in ("volumes", "imagePullSecrets"):
            spec[key] = _by_name(spec.get(key, []), value)
        else:
            spec[key] = value


def _by_name(present, new):
    names = {each["name"] for each in new}
    return [*(each for each in present if each["name"] not in names), *new]
