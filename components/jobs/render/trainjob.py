"""`TrainingJob` → TrainJob (`trainer.kubeflow.org/v1alpha1`, Kubeflow Trainer 2.3)."""

from typing import Any

from components.cluster.kinds import TRAINJOB
from components.jobs.job import TrainingJob
from components.jobs.render import pod

RUNTIME = "torch-distributed"
"""The ClusterTrainingRuntime that Kubeflow Trainer installs for PyTorch."""

_MANAGER = "shardline.dev/launcher"


def render_trainjob(job: TrainingJob, namespace: str) -> dict[str, Any]:
    """The manifest of a TrainJob.

    The runtime `torch-distributed` starts its nodes; what it has no field for comes as a patch of that runtime.
    The kind has no time to live, no grace period of the pods, no priority class, no choice of a rendezvous, and
    takes no init container, so that the node's own checks are the only ones.

    Args:
        job: The attempt; it has pod settings.
        namespace: Where the job will be.
    """
    pods = job.pods
    assert pods is not None
    queue = job.scheduling.queue
    kueue = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    metadata = pod.without_empty(
        {
            "name": job.name,
            "namespace": namespace,
            "labels": {**pod.labels(job), **kueue},
            "annotations": pods.annotations,
            "ownerReferences": [job.scheduling.owner] if job.scheduling.owner else [],
        }
    )
    trainer = pod.without_empty(
        {
            "image": pods.image,
            "command": job.command,
            "numNodes": job.num_nodes,
            "numProcPerNode": job.procs_per_node,
            "env": pod.env(job, TRAINJOB),
            "resourcesPerNode": pod.resources(job),
        }
    )
    return {
        "apiVersion": TRAINJOB.api_version,
        "kind": TRAINJOB.kind,
        "metadata": metadata,
        "spec": {
            "runtimeRef": {"name": RUNTIME},
            "trainer": trainer,
            "runtimePatches": [{"manager": _MANAGER, "trainingRuntimeSpec": {"template": _patch(job)}}],
        },
    }


def _patch(job: TrainingJob) -> dict[str, Any]:
    """Patch of the runtime's JobSet: its replicated job `node`, whose pods train."""
    pods = job.pods
    assert pods is not None
    volumes, mounts = _one_mount_each(pod.volumes(job), pod.volume_mounts(job))
    container = {
        "name": TRAINJOB.container,
        "volumeMounts": mounts,
        "securityContext": pod.CONTAINER_SECURITY,
    }
    spec = pod.without_empty(
        {
            "containers": [container],
            "volumes": volumes,
            "securityContext": pod.POD_SECURITY,
            "serviceAccountName": pods.service_account,
            "imagePullSecrets": [{"name": name} for name in pods.image_pull_secrets],
            "nodeSelector": pods.node_selector,
            "tolerations": list(pods.tolerations),
            "affinity": pod.affinity(job),
        }
    )
    metadata = {"labels": pod.labels(job), "annotations": pod.annotations(job)}
    template = {"template": {"metadata": metadata, "spec": spec}}
    return {"spec": {"replicatedJobs": [{"name": TRAINJOB.container, "template": {"spec": template}}]}}


def _one_mount_each(
    volumes: list[dict[str, Any]], mounts: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The same with a volume for each mount: a patch may name a volume in one mount only."""
    by_name = {volume["name"]: volume for volume in volumes}
    single: dict[str, dict[str, Any]] = {}
    for mount in mounts:
        name, number = mount["name"], 2
        while name in single:
            name, number = f"{mount['name']}-{number}", number + 1
        if number > 2:
            by_name[name] = {**by_name[mount["name"]], "name": name}
        single[name] = {**mount, "name": name}
    return list(by_name.values()), list(single.values())
