"""What has become of a job: a pure function of the job and its pods as the API server shows them."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from components.cluster.kinds import JobKind


class Phase(Enum):
    """Of a job's life."""

    QUEUED = "queued"
    """Not admitted yet, and so without pods."""
    STARTING = "starting"
    """Not all of its pods run."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPING = "stopping"
    """It was deleted, and its pods are leaving."""
    GONE = "gone"


@dataclass(frozen=True)
class PodEnd:
    """How a pod's container ended.

    Attributes:
        pod: Its name.
        node_rank: Of the pod in its job.
        host: The machine it ran on.
        exit_code: Of the container; None where the pod ended without one, as by an eviction.
        reason: Kubernetes' word, such as Error, OOMKilled or Evicted.
        message: Its sentence, where there is one.
        finished: Time of the end, as the API writes it.
    """

    pod: str
    node_rank: int
    host: str
    exit_code: int | None
    reason: str
    message: str
    finished: str


def phase_of(kind: JobKind, job: dict[str, Any] | None, pods: list[dict[str, Any]], num_nodes: int) -> Phase:
    """The phase of a job.

    Args:
        kind: Of the job.
        job: The job; None if there is none.
        pods: Its pods.
        num_nodes: Pods that it should have.
    """
    if job is None:
        return Phase.GONE
    conditions = true_conditions(job)
    # An end counts even if the job is being deleted: what came of it is settled.
    if kind.failed in conditions:
        return Phase.FAILED
    if kind.succeeded in conditions:
        return Phase.SUCCEEDED
    if job["metadata"].get("deletionTimestamp"):
        return Phase.STOPPING
    if "Suspended" in conditions or is_suspended(job):
        return Phase.QUEUED
    # The condition Running is true from the first pod on.
    # Unknown is what a lost machine makes of a pod that runs.
    started = [pod for pod in pods if pod.get("status", {}).get("phase") not in (None, "Pending")]
    return Phase.RUNNING if len(started) >= num_nodes else Phase.STARTING


def true_conditions(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The conditions with status True, by type."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return {condition["type"]: condition for condition in conditions if condition["status"] == "True"}


def is_suspended(job: dict[str, Any]) -> bool:
    """Whether the spec holds the job back, as a queue does."""
    spec = job.get("spec", {})
    return bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))


def pod_end(kind: JobKind, pod: dict[str, Any]) -> PodEnd | None:
    """How a pod ended; None while it has not."""
    status = pod.get("status", {})
    statuses: list[dict[str, Any]] = status.get("containerStatuses") or []
    container = next((c for c in statuses if c["name"] == kind.container), {})
    ended = (container.get("state") or {}).get("terminated")
    if container.get("restartCount"):
        # Restarted in place, as a TrainJob's pods are: what counts is that its first run failed.
        ended = (container.get("lastState") or {}).get("terminated") or ended
    if ended is None and status.get("phase") not in ("Failed", "Succeeded"):
        return None
    ended = ended or _failed_init(status) or {}
    # An eviction is told of the pod, not of its container.
    reason = status.get("reason") or ended.get("reason") or ""
    return PodEnd(
        pod=pod["metadata"]["name"],
        node_rank=node_rank(kind, pod),
        host=pod.get("spec", {}).get("nodeName", ""),
        exit_code=ended.get("exitCode"),
        reason=reason,
        message=status.get("message") or ended.get("message") or "",
        finished=ended.get("finishedAt") or "",
    )


def _failed_init(status: dict[str, Any]) -> dict[str, Any] | None:
    """The end of an init container that kept the pod's own from starting."""
    inits: list[dict[str, Any]] = status.get("initContainerStatuses") or []
    ends = [(init.get("state") or {}).get("terminated") or {} for init in inits]
    return next((ended for ended in ends if ended.get("exitCode")), None)


def node_rank(kind: JobKind, pod: dict[str, Any]) -> int:
    """The pod's place in its job; 0 where neither label nor annotation tells."""
    label = pod["metadata"].get("labels", {}).get(kind.node_label)
    if label is None:
        label = pod["metadata"].get("annotations", {}).get(kind.node_label, "0")
    return int(label) if label.isdecimal() else 0


def why_waiting(pod: dict[str, Any]) -> str | None:
    """Why a pod does not run, in the cluster's own words; None if it does or they are silent."""
    status = pod.get("status", {})
    if status.get("phase") not in ("Pending", None):
        return None
    name = pod["metadata"]["name"]
    statuses = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    for container in statuses:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{name}: {waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    if (condition := _unscheduled(pod)) is not None:
        return f"{name}: {condition.get('reason', 'Unschedulable')}: {condition.get('message', '')}"
    return None


def is_unplaced(pod: dict[str, Any]) -> bool:
    """Whether the scheduler has found no machine for a pod."""
    return _unscheduled(pod) is not None


def _unscheduled(pod: dict[str, Any]) -> dict[str, Any] | None:
    conditions: list[dict[str, Any]] = pod.get("status", {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), None)


def runs_or_ran(kind: JobKind, pod: dict[str, Any]) -> bool:
    """Whether the pod's container has started, so that there is a log."""
    for container in pod.get("status", {}).get("containerStatuses") or []:
        if container["name"] == kind.container:
            state = container.get("state") or {}
            return "running" in state or "terminated" in state
    return False
