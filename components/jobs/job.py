"""The neutral description of one attempt's job, which every launcher understands."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.run_folder import JobPurpose, RunFolder

STAY_S = 60
"""Seconds that a node whose ranks have failed waits for what is decided, with all imported."""


@dataclass(frozen=True)
class PodSettings:
    """What the pods of a cluster job need; launchers without pods leave it aside.

    Attributes:
        image: Of the container.
        image_pull_secrets: Names of secrets.
        service_account: None: the namespace's default.
        env: Variable → value.
        secret_env: Environment entries that refer to secrets or to the pod, as Kubernetes writes them.
        limits: Resource → quantity; requests are the same.
        requests: Of resources whose request is below their limit.
        volumes: As Kubernetes writes them; likewise what follows.
        volume_mounts: Into the container.
        shared_memory: Most that /dev/shm takes; None: what the pod's memory allows.
        node_selector: Labels that a node must have.
        tolerations: Of taints.
        affinity: Of the pods.
        excluded_hosts: Machines that must not be used.
        labels: On job and pods.
        annotations: On job and pods.
        priority_class: Of the pods.
        grace_s: Seconds between SIGTERM and SIGKILL.
        metrics_port: Port of the container that Prometheus reads.
        health_command: Of an init container that checks the machine; none if empty.
    """

    image: str
    image_pull_secrets: tuple[str, ...] = ()
    service_account: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    secret_env: tuple[dict[str, Any], ...] = ()
    limits: dict[str, str] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)
    volumes: tuple[dict[str, Any], ...] = ()
    volume_mounts: tuple[dict[str, Any], ...] = ()
    shared_memory: str | None = None
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()
    affinity: dict[str, Any] = field(default_factory=dict)
    excluded_hosts: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    priority_class: str | None = None
    grace_s: int = 330
    metrics_port: int | None = None
    health_command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scheduling:
    """How a cluster admits a job and keeps it.

    Attributes:
        queue: Kueue's LocalQueue, or Volcano's queue.
        gang: `none`, `volcano` or `coscheduling`.
        etcd_endpoint: HOST:PORT of the rendezvous server; None: c10d, through the first pod.
        ttl_s: Seconds after its end until the job is removed; None: never.
        hyperpod_max_retries: Ask HyperPod for automatic resume, so many times; None: do not.
        owner: Owner reference; the job is removed with it.
    """

    queue: str | None = None
    gang: str = "none"
    etcd_endpoint: str | None = None
    ttl_s: int | None = None
    hyperpod_max_retries: int | None = None
    owner: dict[str, Any] | None = None


@dataclass(frozen=True)
class TrainingJob:
    """One attempt at a run's training or evaluation.

    Attributes:
        name: See `job_name`; the same attempt always has the same name.
        run_folder: The job's folder in the run's, which is all that the ranks need to know.
        attempt: Counted from 1.
        num_nodes: Nodes, each of which runs `python -m training.node <run folder>`.
        procs_per_node: Ranks on a node.
        run_id: Tells runs of the same name in different stores apart.
        pods: For launchers of pods.
        scheduling: Likewise.
    """

    name: str
    run_folder: Path
    attempt: int
    num_nodes: int
    procs_per_node: int
    run_id: str = ""
    pods: PodSettings | None = None
    scheduling: Scheduling = Scheduling()

    @property
    def run(self) -> str:
        """The run's name."""
        return RunFolder.at(self.run_folder).run

    @property
    def purpose(self) -> JobPurpose:
        """What it is for."""
        return RunFolder.at(self.run_folder).purpose

    @property
    def command(self) -> list[str]:
        """What each node runs; the rest it learns from the run's folder and from PET_* variables."""
        return ["python", "-m", "training.node", str(self.run_folder)]


_LONGEST = 63
"""Of the names that are made from a job's: of a pod, its service, a label."""


_MARKS: dict[JobPurpose, str] = {"training": "", "evaluation": "e", "health": "h"}


def job_name(run: str, attempt: int, num_nodes: int, purpose: JobPurpose = "training") -> str:
    """The name of an attempt's job, short enough for its pods and their services.

    It is `<run>-<attempt>`, of an evaluation `<run>-e<attempt>` and of deep checks `<run>-h<attempt>`, which no
    other run's training can have.

    A PyTorchJob whose name is too long is accepted and its pods run, but it never gets a status. Of a TrainJob
    the pods' names are the longest, `<job>-node-0-<n>-<5 letters>`, and a JobSet is refused for them.
    """
    number = f"{_MARKS[purpose]}{attempt}"
    name = f"{run}-{number}"
    longest = _LONGEST - len(f"-node-0-{num_nodes - 1}-abcde")
    if len(name) <= longest:
        return name
    mark = hashlib.sha256(run.encode()).hexdigest()[:6]
    end = f"-{mark}-{number}"
    return run[: longest - len(end)].rstrip("-") + end
