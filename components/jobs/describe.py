"""From a run's configuration, and the KFP task's own settings, to the job of an attempt."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from components.image import IMAGE
from components.jobs.job import STAY_S, PodSettings, Scheduling, TrainingJob, job_name
from training.config import ClusterConfig, RunConfig
from training.errors import UserError
from training.health.gpu import expected_gpus
from training.run_folder import RunFolder
from training.store import write_atomically

_STORE_VOLUME = "shardline-store"

_LOCAL_VOLUME = "shardline-local"
"""Where `checkpoint.local_folder` is no volume of the KFP task's own."""

_EFA = "vpc.amazonaws.com/efa"

DEFAULT_ENV = {
    # A user of the image need not be in /etc/passwd, and has no home then.
    "HOME": "/tmp",
    # Fragmentation costs tens of gigabytes on long runs with packed samples of uneven length.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    # A collective that fails ends its process instead of leaving it to wait.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    # The last collectives of every rank, written down when one times out.
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "NCCL_DEBUG": "WARN",
    # Loopback and container bridges never lead to another node.
    "NCCL_SOCKET_IFNAME": "^lo,docker,veth",
}
"""Of every pod; `cluster.env` wins."""

_STEPS_OWN = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
"""Credentials of a step that its job has no use for."""

_EFA_ENV = {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1"}


@dataclass(frozen=True)
class TaskSettings:
    """What was set on a KFP task, as Kubernetes writes it, meant for the pods of its job.

    Attributes:
        affinity: Of the task; likewise the others.
    """

    affinity: dict[str, Any] = field(default_factory=dict)
    tolerations: list[dict[str, Any]] = field(default_factory=list)
    node_selector: dict[str, str] = field(default_factory=dict)
    env: list[dict[str, Any]] = field(default_factory=list)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    volume_mounts: list[dict[str, Any]] = field(default_factory=list)
    resources: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, task: object) -> "TaskSettings":
        """From kfp's TaskConfig, of which every field may be None, as outside a cluster."""
        given = {f.name: getattr(task, f.name, None) for f in fields(cls)}
        return cls(**{name: value for name, value in given.items() if value})

    def save(self, folder: RunFolder) -> None:
        """Keep them for the jobs after, all but the environment, which may hold what is secret."""
        kept = {name: value for name, value in asdict(self).items() if name != "env"}
        write_atomically(folder.path / "task.json", json.dumps(kept))

    def or_saved(self, folder: RunFolder) -> "TaskSettings":
        """These, and where they say nothing, those that `save` kept."""
        path = folder.path / "task.json"
        saved = json.loads(path.read_text()) if path.is_file() else {}
        return replace(self, **{name: value for name, value in saved.items() if not getattr(self, name)})


def describe_job(
    config: RunConfig,
    folder: RunFolder,
    attempt: int,
    task: TaskSettings | None = None,
    *,
    image: str | None = None,
    owner: dict[str, Any] | None = None,
    excluded_hosts: tuple[str, ...] = (),
) -> TrainingJob:
    """The job of one attempt in a cluster. What the configuration sets wins over the KFP task.

    Args:
        config: The run's.
        folder: The run's.
        attempt: Counted from 1.
        task: Settings of the KFP task.
        image: Where the configuration has none.
        owner: Owner reference of the job.
        excluded_hosts: Machines that must not be used.

    Raises:
        UserError: It cannot be known how many ranks a node has, or where the store is.
    """
    task = task or TaskSettings()
    cluster, nodes = config.cluster, config.parallel.num_nodes
    limits, requests = _resources(config, task)
    volumes, mounts = _volumes(config, folder, task)
    efa = _EFA_ENV if _EFA in limits else {}
    pods = PodSettings(
        image=cluster.image or image or IMAGE,
        image_pull_secrets=cluster.image_pull_secrets,
        service_account=cluster.service_account,
        env={
            **DEFAULT_ENV,
            **efa,
            **{entry["name"]: entry["value"] for entry in task.env if entry.get("value") is not None},
            **cluster.env,
            "SHARDLINE_HEARTBEAT_TIMEOUT_S": str(config.resilience.heartbeat_timeout_s),
            "SHARDLINE_STAY_S": str(STAY_S),
        },
        secret_env=_secret_env(cluster, task),
        limits=limits,
        requests=requests,
        volumes=volumes,
        volume_mounts=mounts,
        shared_memory=cluster.shared_memory,
        node_selector={**task.node_selector, **cluster.node_selector},
        tolerations=_unique([*cluster.tolerations, *task.tolerations]),
        affinity=cluster.affinity or task.affinity,
        excluded_hosts=excluded_hosts,
        labels=cluster.labels,
        annotations=cluster.annotations,
        priority_class=cluster.priority_class,
        grace_s=cluster.grace_s,
        metrics_port=cluster.metrics_port,
        health_command=_health_command(config, folder, limits),
    )
    return TrainingJob(
        name=job_name(folder.run, attempt, nodes, folder.purpose),
        run_folder=folder.job_path,
        attempt=attempt,
        num_nodes=nodes,
        procs_per_node=ranks_per_node(config, task),
        run_id=folder.identity() if folder.path.is_dir() else "",
        pods=pods,
        scheduling=Scheduling(
            queue=cluster.queue,
            gang=cluster.gang,
            etcd_endpoint=cluster.etcd_endpoint,
            ttl_s=cluster.ttl_s,
            hyperpod_max_retries=cluster.hyperpod_max_retries,
            owner=owner,
        ),
    )


def ranks_per_node(config: RunConfig, task: TaskSettings | None = None) -> int:
    """Ranks in each pod: as the configuration says, or one per GPU that is asked for.

    Raises:
        UserError: Neither is known: the machine of this process tells nothing about the pods.
    """
    gpus = config.cluster.gpus_per_node
    if gpus is None and task is not None:
        gpus = int((task.resources.get("limits") or {}).get(config.cluster.gpu_resource, 0)) or None
    ranks = config.parallel.procs_per_node or gpus
    if not ranks:
        what = (
            "processes that train on the CPUs of a node"
            if gpus == 0
            else "GPUs of a node; to train on CPUs set cluster.gpus_per_node=0 too"
        )
        raise UserError(
            "how many ranks each pod has is not known: set parallel.procs_per_node (in the UI: procs_per_node) to "
            f"the number of {what}"
        )
    return ranks


def _resources(config: RunConfig, task: TaskSettings) -> tuple[dict[str, str], dict[str, str]]:
    cluster = config.cluster
    limits = {name: str(amount) for name, amount in (task.resources.get("limits") or {}).items()}
    requests = {name: str(amount) for name, amount in (task.resources.get("requests") or {}).items()}
    gpus = cluster.gpus_per_node
    if gpus is None and cluster.gpu_resource not in limits:
        gpus = config.parallel.procs_per_node
    given = {
        cluster.gpu_resource: gpus,
        _EFA: cluster.efa_per_node or None,
        "cpu": cluster.cpus_per_node,
        "memory": cluster.memory_per_node,
        **cluster.resources,
    }
    for name, amount in given.items():
        if amount is not None:
            limits[name] = str(amount)
            requests.pop(name, None)
    if limits.get(cluster.gpu_resource) == "0":
        del limits[cluster.gpu_resource]
    return limits, {name: amount for name, amount in requests.items() if limits.get(name) != amount}


def _health_command(config: RunConfig, folder: RunFolder, limits: dict[str, str]) -> tuple[str, ...]:
    """What checks a machine with GPUs before the pod's own container starts."""
    if not config.resilience.health_checks or config.cluster.gpu_resource not in limits:
        return ()
    gpus = expected_gpus(config.cluster, limits)
    count = () if gpus is None else ("--gpus", str(gpus))
    return ("python", "-m", "training.health", "--run", str(folder.job_path), *count)


def _volumes(
    config: RunConfig, folder: RunFolder, task: TaskSettings
) -> tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]:
    volumes, mounts = list(task.volumes), list(task.volume_mounts)
    root, local = str(folder.root), config.checkpoint.local_folder
    if not any(_covers(mount["mountPath"], root) for mount in mounts):
        claim = config.cluster.store_claim
        if claim is None:
            raise UserError(
                f"the job's pods would not see the store {root}: set cluster.store_claim to the "
                "PersistentVolumeClaim that holds it"
            )
        volumes.append({"name": _STORE_VOLUME, "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": _STORE_VOLUME, "mountPath": root})
    if local is not None and not any(_covers(mount["mountPath"], local) for mount in mounts):
        # The disk of the pod's own machine, which stays as long as the pod: for restarts in place.
        volumes.append({"name": _LOCAL_VOLUME, "emptyDir": {}})
        mounts.append({"name": _LOCAL_VOLUME, "mountPath": local})
    return tuple(volumes), tuple(mounts)


def _covers(mount: str, path: str) -> bool:
    return f"{path}/".startswith(mount.rstrip("/") + "/")


def _secret_env(cluster: ClusterConfig, task: TaskSettings) -> tuple[dict[str, Any], ...]:
    """Entries by reference: what is secret is in no manifest."""
    entries = {
        entry["name"]: entry
        for entry in task.env
        if entry.get("valueFrom") and entry["name"] not in cluster.env and entry["name"] not in _STEPS_OWN
    }
    for name, reference in cluster.secrets.items():
        secret, _, key = reference.partition("/")
        entries[name] = {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
    return tuple(entries.values())


def _unique(items: list[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    seen = {json.dumps(item, sort_keys=True): dict(item) for item in items}
    return tuple(seen.values())
