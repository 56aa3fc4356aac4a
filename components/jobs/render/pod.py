"""What all kinds of cluster jobs put into their pods."""

from typing import Any

from components.cluster.kinds import ATTEMPT_LABEL, PURPOSE_LABEL, RUN_ID_LABEL, RUN_LABEL, JobKind, safe_label
from components.cluster.node_labels import HEALTH_LABEL, UNFIT
from components.jobs.job import PodSettings, TrainingJob

_SHARED_MEMORY = "shared-memory"

HEALTH_CONTAINER = "health"

HOSTNAME = "kubernetes.io/hostname"


def labels(job: TrainingJob) -> dict[str, str]:
    """Labels by which a job and its pods are found."""
    pods = _pods(job)
    return {
        **pods.labels,
        "app.kubernetes.io/name": "shardline",
        PURPOSE_LABEL: job.purpose,
        RUN_LABEL: safe_label(job.run),
        RUN_ID_LABEL: safe_label(job.run_id),
        ATTEMPT_LABEL: str(job.attempt),
        # For meshes that decide by label; see `annotations`.
        "sidecar.istio.io/inject": "false",
    }


def annotations(job: TrainingJob) -> dict[str, str]:
    """Annotations of the pods: a mesh's sidecar would outlive the ranks, and keep the pod from ending."""
    return {**_pods(job).annotations, "sidecar.istio.io/inject": "false"}


def env(job: TrainingJob, kind: JobKind) -> list[dict[str, Any]]:
    """Environment of the container, sorted by name; the operator adds PET_*."""
    pods = _pods(job)
    plain = {**pods.env, "SHARDLINE_ATTEMPT": str(job.attempt), "SHARDLINE_WATCH_LAUNCHER": "1"}
    entries: dict[str, dict[str, Any]] = {name: {"name": name, "value": value} for name, value in plain.items()}
    entries |= {entry["name"]: entry for entry in pods.secret_env}
    place = {"fieldRef": {"fieldPath": f"metadata.labels['{kind.node_label}']"}}
    entries["SHARDLINE_NODE"] = {"name": "SHARDLINE_NODE", "valueFrom": place}
    host = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    entries["SHARDLINE_HOST"] = {"name": "SHARDLINE_HOST", "valueFrom": host}
    return [entries[name] for name in sorted(entries)]


def init_containers(job: TrainingJob, kind: JobKind) -> list[dict[str, Any]]:
    """The check of the machine, with the same devices and volumes as the ranks."""
    pods = _pods(job)
    if not pods.health_command:
        return []
    container = {
        "name": HEALTH_CONTAINER,
        "image": pods.image,
        "command": list(pods.health_command),
        "env": env(job, kind),
        "resources": resources(job),
        "volumeMounts": volume_mounts(job),
        "securityContext": CONTAINER_SECURITY,
    }
    return [without_empty(container)]


def resources(job: TrainingJob) -> dict[str, Any]:
    """Of the container; requests equal limits where nothing else is said, as devices demand."""
    pods = _pods(job)
    if not pods.limits and not pods.requests:
        return {}
    return {"limits": dict(pods.limits), "requests": {**pods.limits, **pods.requests}}


def volumes(job: TrainingJob) -> list[dict[str, Any]]:
    """The job's own, and memory for /dev/shm, of which a container has 64 MiB otherwise: too little for NCCL."""
    size = _pods(job).shared_memory
    memory: dict[str, Any] = {"medium": "Memory", **({"sizeLimit": size} if size else {})}
    return [*_pods(job).volumes, {"name": _SHARED_MEMORY, "emptyDir": memory}]


def volume_mounts(job: TrainingJob) -> list[dict[str, Any]]:
    """Of the container."""
    return [*_pods(job).volume_mounts, {"name": _SHARED_MEMORY, "mountPath": "/dev/shm"}]


def affinity(job: TrainingJob) -> dict[str, Any]:
    """The pods' affinity, and the machines that must not be used.

    Those that HyperPod is about to reboot or replace are among them. Machines without its label match, too.
    """
    pods = _pods(job)
    apart = [{"key": HEALTH_LABEL, "operator": "NotIn", "values": list(UNFIT)}]
    if pods.excluded_hosts:
        apart.append({"key": HOSTNAME, "operator": "NotIn", "values": sorted(pods.excluded_hosts)})
    node = dict(pods.affinity.get("nodeAffinity", {}))
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    # Terms are alternatives, so each must leave the machines out.
    terms = [
        {**term, "matchExpressions": [*term.get("matchExpressions", []), *apart]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    node["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    return {**pods.affinity, "nodeAffinity": node}


POD_SECURITY = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
"""What a namespace of the level `restricted` demands of a pod."""

CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""And of a container."""


def without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that say something; 0 and False do."""
    return {key: value for key, value in fields.items() if value not in (None, {}, [], (), "")}


def _pods(job: TrainingJob) -> PodSettings:
    assert job.pods is not None, "a cluster job without pod settings"
    return job.pods
