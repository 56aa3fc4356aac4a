"""The section `cluster`."""

from typing import Literal

from pydantic import Field, field_validator

from training.config.section import Section
from training.credentials import names_credential
from training.kubernetes_placement import Affinity, Toleration
from training.kubernetes_rules import (
    Annotations,
    Endpoint,
    EnvName,
    EnvValue,
    Image,
    KubernetesName,
    LabelKey,
    Labels,
    LabelValue,
    Memory,
    Namespace,
    Quantity,
    QueueName,
    ResourceName,
    Resources,
    SecretKey,
)

_RENDEZVOUS_PORT = 23456
"""The training operator's own, on the first pod."""


class ClusterConfig(Section):
    """Where the training processes run, and what their pods ask of a cluster."""

    launcher: Literal["auto", "local", "pytorchjob", "trainjob"] = "auto"
    """`pytorchjob` and `trainjob` create a job of that kind in Kubernetes; `local` runs one node on the machine
    (or in the pod) of the `train` step. `auto`: inside a cluster the kind of job that is installed there, else
    local."""

    namespace: Namespace | None = None
    """Namespace of the job. Unset: that of the `train` step's pod, or of the kubeconfig's context."""

    image: Image | None = None
    """Image of the job's pods. Unset: that of the `train` step's pod."""

    image_pull_secrets: tuple[KubernetesName, ...] = ()
    """Secrets that hold credentials of the image's registry."""

    service_account: KubernetesName | None = None
    """Service account of the job's pods. They need no rights; unset: the namespace's default."""

    store_claim: KubernetesName | None = None
    """PersistentVolumeClaim (ReadWriteMany) that is mounted at the store's root. The pipeline's parameter of the
    same name sets it."""

    gpus_per_node: int | None = Field(default=None, ge=0, le=1024)
    """GPUs that each pod asks for; 0 trains on CPUs. Unset: `parallel.procs_per_node`."""

    gpu_resource: ResourceName = "nvidia.com/gpu"
    """Name under which the cluster offers its GPUs."""

    cpus_per_node: Quantity | None = None
    """CPUs that each pod asks for, such as 48. Unset: what the `train` task asks for, if anything."""

    memory_per_node: Memory | None = None
    """Memory that each pod asks for, such as 512Gi. Unset: what the `train` task asks for, if anything."""

    efa_per_node: int = Field(default=0, ge=0, le=1024)
    """Elastic Fabric Adapter interfaces (AWS) that each pod asks for."""

    resources: Resources = {}
    """Other resources that each pod asks for, by name, such as {hugepages-2Mi: 5120Mi, rdma/ib: 1}."""

    shared_memory: Memory | None = None
    """Most that /dev/shm takes of a pod's memory, such as 64Gi. Unset: no limit of its own."""

    env: dict[EnvName, EnvValue] = {}
    """Environment of the job's pods, on top of Shardline's own settings for NCCL and the like. Nothing secret."""

    secrets: dict[EnvName, SecretKey] = {}
    """Environment from secrets, as {VARIABLE: secret/key}."""

    node_selector: dict[LabelKey, LabelValue] = {}
    """Labels that a node must have, such as {node.kubernetes.io/instance-type: p5.48xlarge}."""

    autoscaling: bool = False
    """Whether the cluster adds machines on demand, so that preflight does not expect them to be there already."""

    tolerations: tuple[Toleration, ...] = ()
    """Taints that the pods tolerate, as Kubernetes writes them. Those of the `train` task come on top."""

    affinity: Affinity = {}
    """Affinity of the pods, as Kubernetes writes it. Unset: that of the `train` task."""

    labels: Labels = {}
    """More labels on the job and its pods."""

    annotations: Annotations = {}
    """More annotations on the job and its pods."""

    queue: QueueName | None = None
    """Kueue's LocalQueue that admits the job; with `gang: volcano` Volcano's queue."""

    gang: Literal["none", "volcano", "coscheduling"] = "none"
    """Start all pods or none, through this gang scheduler; the training operator must run with it."""

    priority_class: KubernetesName | None = None
    """PriorityClass of the pods."""

    rendezvous: Literal["c10d", "etcd"] = "c10d"
    """How the nodes of a PyTorchJob find each other: `c10d` through the first pod, `etcd` through a server."""

    etcd_endpoint: Endpoint | None = None
    """`HOST:PORT` of the etcd server (with its version 2 API), for `rendezvous: etcd`."""

    hyperpod_max_retries: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """On SageMaker HyperPod: ask for automatic resume of the job, at most so many times."""

    grace_s: int = Field(default=330, ge=30, le=86_400)
    """Seconds that a pod may take to save after it was told to stop."""

    ttl_s: int | None = Field(default=86400, ge=0, le=2**31 - 1)
    """Seconds after its end until a PyTorchJob and its pods are removed. null: never."""

    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Port at which the node of rank 0 serves the run's metrics for Prometheus while it trains, to all who reach
    that node: `http://<node>:<port>/metrics`. Unset: no port is opened."""

    @field_validator("env", "secrets")
    @classmethod
    def _refuse_reserved_env(cls, env: dict[str, str]) -> dict[str, str]:
        if reserved := [name for name in env if name.startswith(("PET_", "SHARDLINE_"))]:
            raise ValueError(
                f"cluster.env and cluster.secrets cannot set {', '.join(reserved)}: PET_* is the training "
                "operator's and SHARDLINE_* the launcher's"
            )
        return env

    @field_validator("env")
    @classmethod
    def _refuse_secrets(cls, env: dict[str, str]) -> dict[str, str]:
        # The config is saved, shown and logged in many places.
        if names := [name for name in env if names_credential(name)]:
            raise ValueError(
                f"cluster.env sets {', '.join(names)}, which looks like a credential: put it into a Kubernetes "
                f"secret, and set cluster.secrets to {{{names[0]}: SECRET/KEY}}"
            )
        return env


def one_node_only(num_nodes: int, section: str) -> str:
    """Say why a launcher that has one node cannot take a job of several, whose size the section tells."""
    return (
        f"{section}.num_nodes is {num_nodes}, but cluster.launcher local runs on one node: set "
        f"{section}.num_nodes to 1 and {section}.procs_per_node to the ranks it should have, or run it in a "
        "cluster"
    )


def launcher_problems(cluster: ClusterConfig) -> list[str]:
    """What of the section does not fit together, or not its launcher, as sentences."""
    problems = []
    if cluster.rendezvous == "etcd" and cluster.etcd_endpoint is None:
        problems.append("cluster.rendezvous is etcd: set cluster.etcd_endpoint to the server's HOST:PORT")
    if cluster.rendezvous != "etcd" and cluster.etcd_endpoint is not None:
        problems.append("cluster.etcd_endpoint is set, but it has a meaning only with cluster.rendezvous etcd")
    if cluster.metrics_port == _RENDEZVOUS_PORT and cluster.rendezvous == "c10d":
        problems.append(
            f"cluster.metrics_port is {_RENDEZVOUS_PORT}, at which the nodes of a PyTorchJob meet: choose another"
        )
    problems += _given_twice(cluster)
    if cluster.launcher == "trainjob":
        # Its controller sets the rendezvous, and the kind has no field for these.
        for name in ("gang", "hyperpod_max_retries", "priority_class", "rendezvous"):
            if getattr(cluster, name) != ClusterConfig.model_fields[name].default:
                problems.append(
                    f"cluster.{name} is set, but a TrainJob has no such choice: leave it out, or set "
                    "cluster.launcher to pytorchjob"
                )
    return problems


def _given_twice(cluster: ClusterConfig) -> list[str]:
    """Of what is set in two places, one would have no effect."""
    problems = []
    if both := sorted(cluster.env.keys() & cluster.secrets.keys()):
        problems.append(f"{', '.join(both)} stands in cluster.env and in cluster.secrets: leave it out of one")
    fields = {
        cluster.gpu_resource: "gpus_per_node",
        "cpu": "cpus_per_node",
        "memory": "memory_per_node",
        "vpc.amazonaws.com/efa": "efa_per_node",
    }
    for name, field in fields.items():
        if name in cluster.resources and getattr(cluster, field) != ClusterConfig.model_fields[field].default:
            problems.append(f"{name} stands in cluster.resources, and cluster.{field} is set: leave one out")
    return problems
