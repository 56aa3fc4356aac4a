"""Stops a run in a cluster: its pipeline, then its jobs, whose pods save first."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from components.cluster.client import Cluster
from components.cluster.inside import is_inside
from components.cluster.jobs import delete_job, get_job, list_pods
from pipelines.jobs.lookup import FoundJob, find_jobs, grace_s
from pipelines.jobs.submitted import is_named
from training.errors import UserError

if TYPE_CHECKING:
    from pipelines.kubeflow.client import Kubeflow
    from pipelines.kubeflow.runs import KubeflowRun

_LOOK_S = 0.5

_LEFT_S = 30.0
"""Beyond the pods' own grace, for the cluster to remove what was told to stop."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Stoppable:
    """What of a run goes on.

    Attributes:
        cluster: Where its jobs are.
        run: Its name.
        jobs: Those that have neither succeeded nor failed.
        kubeflow: The server of Kubeflow Pipelines; None where none is named, or it gave trouble.
        pipeline: The run there; None where it has ended or there is none.
        trouble: Why Kubeflow Pipelines could not be asked; empty if it could, or was not to be.
    """

    cluster: Cluster
    run: str
    jobs: list[FoundJob]
    kubeflow: "Kubeflow | None" = None
    pipeline: "KubeflowRun | None" = None
    trouble: str = ""

    def __bool__(self) -> bool:
        """Whether there is anything to stop."""
        return bool(self.jobs or self.pipeline)

    def __str__(self) -> str:
        """What it is, for a question."""
        jobs = [f"the job {job.name}" for job in self.jobs]
        pipeline = ["its pipeline in Kubeflow"] if self.pipeline else []
        return f"the run {self.run} ({', '.join([*jobs, *pipeline])})"


def find_stoppable(cluster: Cluster, run: str, host: str = "", namespace: str = "") -> Stoppable:
    """What of a run goes on, in the cluster and in Kubeflow Pipelines.

    Args:
        cluster: Where jobs are.
        run: The run's name.
        host: Address of Kubeflow Pipelines; empty: that of the environment, or of this pod's cluster.
        namespace: The user's namespace there.

    Raises:
        UserError: The cluster does not let the user look.
        ClusterUnavailable: It does not answer.
    """
    jobs = _unfinished(cluster, run)
    named = is_named(host)
    if not named and not is_inside():
        return Stoppable(cluster, run, jobs)
    from pipelines.kubeflow.client import connect
    from pipelines.kubeflow.runs import find_run

    try:
        kubeflow = connect(host, namespace)
        pipeline = find_run(kubeflow, run)
    except UserError as error:
        # The jobs, which hold the machines, are stopped even so.
        return Stoppable(cluster, run, jobs, trouble=str(error) if named else "")
    return Stoppable(cluster, run, jobs, kubeflow, pipeline if pipeline and not pipeline.ended else None)


def what_goes_on(target: Stoppable) -> str:
    """That nothing goes on of a run, and which runs do go on."""
    cluster = target.cluster
    others = sorted({job.run for job in find_jobs(cluster, purpose=None) if not job.has_ended})
    more = f"; those that have are {', '.join(others)}" if others else ""
    return (
        f"the run '{target.run}' has no unfinished job in the namespace '{cluster.namespace}' "
        f"({cluster.where}){more}."
    )


def stop_all(target: Stoppable, say: Say) -> bool:
    """End the pipeline, delete the jobs, and come back when their pods are gone.

    Args:
        target: From `find_stoppable`.
        say: Takes a line that tells how it goes.

    Returns:
        Whether all of it has stopped.

    Raises:
        UserError: The cluster or Kubeflow does not allow it.
        ClusterUnavailable: The cluster does not answer.
    """
    # First, so that it begins no further attempt.
    if target.kubeflow and target.pipeline:
        from pipelines.kubeflow.runs import terminate_run

        terminate_run(target.kubeflow, target.run)
        say(f"the run is ended in Kubeflow Pipelines: {target.pipeline.url}")
    stuck: set[str] = set()
    # Again, because a supervisor may have begun the next attempt before it heard of the stop.
    while jobs := [job for job in _unfinished(target.cluster, target.run) if job.name not in stuck]:
        for job in jobs:
            say(f"stopping {job.kind.kind} {job.name}: its pods save first, for at most {grace_s(job.pods)} s")
            delete_job(target.cluster, job.kind, job.name)
        stuck |= {job.name for job in jobs if not _wait_until_gone(target.cluster, job, say)}
    return not stuck


def _unfinished(cluster: Cluster, run: str) -> list[FoundJob]:
    return [job for job in find_jobs(cluster, run, purpose=None) if not job.has_ended]


def _wait_until_gone(cluster: Cluster, job: FoundJob, say: Say) -> bool:
    deadline = time.monotonic() + grace_s(job.pods) + _LEFT_S
    told = len(job.pods)
    while (left := get_job(cluster, job.kind, job.name)) and left["metadata"]["uid"] == job.uid:
        pods, _ = list_pods(cluster, job.kind, job.name)
        if len(pods) != told:
            told = len(pods)
            say(f"{job.name}: {told} of {job.num_nodes} pods are left")
        if time.monotonic() > deadline:
            say(
                f"{job.name}: the pods do not leave; their machines may be lost: look with `kubectl get pods -o "
                f"wide -n {cluster.namespace}`"
            )
            return False
        time.sleep(_LOOK_S)
    return True
