"""Why a job does not run, or failed, in the cluster's own words."""

from typing import Any

from components.cluster.client import Cluster
from components.cluster.errors import ClusterRefused, ClusterUnavailable
from components.cluster.job_state import Phase, pod_end, true_conditions, why_waiting
from components.cluster.jobs import list_events
from components.jobs.evidence import describe_ending, event_lines
from pipelines.jobs.lookup import FoundJob

_MOST = 6

_QUEUE = "kueue.x-k8s.io/queue-name"


def reasons_of(cluster: Cluster, job: FoundJob) -> tuple[str, ...]:
    """Sentences about a job that waits or that failed; none about others."""
    if job.phase in (Phase.QUEUED, Phase.STARTING):
        return tuple(_waiting(cluster, job)[:_MOST])
    if job.phase is Phase.FAILED:
        return tuple(_failed(cluster, job)[:_MOST])
    return ()


def _waiting(cluster: Cluster, job: FoundJob) -> list[str]:
    reasons = [reason for pod in job.pods if (reason := why_waiting(pod))]
    if reasons:
        return reasons
    # Of a job without pods, or without a status, the events alone say why.
    warnings = event_lines(_events(cluster, job))
    queue = job.manifest["metadata"]["labels"].get(_QUEUE)
    if job.phase is Phase.QUEUED and queue:
        warnings.append(f"the queue '{queue}' has not admitted it")
    return warnings


def _failed(cluster: Cluster, job: FoundJob) -> list[str]:
    ends = [end for pod in job.pods if (end := pod_end(job.kind, pod))]
    condition = true_conditions(job.manifest)[job.kind.failed]
    ending = describe_ending(ends, [condition.get("message", "")], _events(cluster, job))
    return list(dict.fromkeys(ending.evidence.splitlines()))


def _events(cluster: Cluster, job: FoundJob) -> list[dict[str, Any]]:
    names = {job.name, *(pod["metadata"]["name"] for pod in job.pods)}
    try:
        return list_events(cluster, names)
    except (ClusterRefused, ClusterUnavailable):
        return []  # they add to the view, which is of use without them
