"""A run by its jobs; before it has one, and where it never gets one, by what Kubeflow Pipelines knows of it."""

import os
from collections.abc import Callable, Iterator

from components.cluster.client import Cluster
from components.cluster.inside import is_inside
from pipelines.jobs.lookup import find_jobs, no_such_run
from pipelines.jobs.model import RunView
from pipelines.jobs.table import change_lines
from pipelines.jobs.view import view_run, watch_run
from training.errors import UserError


def view_known_run(cluster: Cluster, run: str, host: str = "", namespace: str = "") -> RunView:
    """A run as it is now.

    Args:
        cluster: Where its jobs are.
        run: The run's name.
        host: Address of Kubeflow Pipelines; empty: that of the environment, or of this pod's cluster.
        namespace: The user's namespace there.

    Raises:
        UserError: It has no job and Kubeflow Pipelines does not know it; or either does not let the user look.
        ClusterUnavailable: The cluster does not answer.
    """
    return view_run(cluster, run) if find_jobs(cluster, run) else next(_before_jobs(cluster, run, host, namespace))


def watch_known_run(cluster: Cluster, run: str, host: str = "", namespace: str = "") -> Iterator[RunView]:
    """A run as it is now, and again whenever that changes, until its newest attempt or Kubeflow has ended it.

    Args:
        cluster: Where its jobs are.
        run: The run's name.
        host: As in `view_known_run`; likewise `namespace`.
        namespace: See `host`.

    Raises:
        UserError: As `view_known_run`; or Kubeflow has refused to answer for ten minutes.
        ClusterUnavailable: The cluster has not answered for ten minutes.
    """
    if not find_jobs(cluster, run):
        for view in _before_jobs(cluster, run, host, namespace):
            if view.attempts:
                break
            yield view
            if view.ended:
                return
    yield from watch_run(cluster, run)


def await_job(
    cluster: Cluster, run: str, host: str, namespace: str, say: Callable[[str], None], *, wait: bool
) -> RunView | None:
    """Tell where a run is that has no job, and wait for the job.

    Args:
        cluster: Where its jobs are.
        run: The run's name.
        host: As in `view_known_run`; likewise `namespace`.
        namespace: See `host`.
        say: Takes a line.
        wait: Until it has a job or has ended; else its state is told once.

    Returns:
        None if it has a job; else the run as it was last.

    Raises:
        UserError: As `watch_known_run`.
        ClusterUnavailable: The cluster does not answer.
    """
    if find_jobs(cluster, run):
        return None
    before: RunView | None = None
    for view in _before_jobs(cluster, run, host, namespace):
        if view.attempts:
            return None
        for line in change_lines(before, view, 0.0):
            say(line)
        before = view
        if not wait:
            break
    return before


def is_named(host: str) -> bool:
    """Whether the user or the environment names a server of Kubeflow Pipelines."""
    return bool(host or any(map(os.environ.get, ("KF_PIPELINES_ENDPOINT", "KFP_ENDPOINT"))))


def _before_jobs(cluster: Cluster, run: str, host: str, namespace: str) -> Iterator[RunView]:
    """What Kubeflow knows of a run that has no job; of one that it does not know, that it does not."""
    missing = no_such_run(cluster, run)
    if not is_named(host) and not is_inside():
        raise UserError(
            f"{missing}; to see it before, in Kubeflow Pipelines, set KF_PIPELINES_ENDPOINT or give --host"
        )
    from pipelines.kubeflow.client import connect
    from pipelines.kubeflow.runs import find_run
    from pipelines.kubeflow.submitted_run import watch_submitted

    try:
        kubeflow = connect(host, namespace)
        known = find_run(kubeflow, run)
    except UserError as error:
        raise UserError(f"{missing}; Kubeflow Pipelines could not be asked: {error}") from None
    if known is None:
        raise UserError(f"{missing}; nor does Kubeflow Pipelines at {kubeflow.host} have a run of this name")
    return watch_submitted(kubeflow, cluster, run)
