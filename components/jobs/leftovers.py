"""Stops jobs of a run, of one purpose, that nobody supervises any more."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from components.jobs.attempts import records
from components.jobs.launchers import local
from training.errors import UserError
from training.run_folder import RunFolder

_LOOK_S = 0.5


def stop_leftovers(folder: RunFolder) -> int:
    """Stop what earlier launchers of a run left, on this machine and in the cluster; returns how many jobs.

    Comes back when they are gone: ranks that outlive their launcher could still save beside those of the next
    attempt.
    """
    return _stop_in_cluster(folder) + local.stop_leftovers(folder.job_path)


def wait_for_pods(folder: RunFolder) -> None:
    """Wait until none of a run's pods can write any more.

    Those of a job that was deleted in the background, as with its owner, outlive it while they save.

    Raises:
        UserError: Pods run that nobody has told to stop.
    """
    for namespace in sorted({namespace for _, namespace in _places(folder)}):
        started = time.monotonic()
        for pods in _unfinished(folder, namespace):
            if all(_is_stuck(pod, time.monotonic() - started) for pod in pods):
                _tell_of_stuck(pods, namespace)
                break


def _places(folder: RunFolder) -> set[tuple[str, str]]:
    """Launcher and namespace of all jobs in a cluster; without any, no cluster is asked."""
    return {(r["launcher"], r["namespace"]) for r in records(folder) if r.get("namespace")}


def _unfinished(folder: RunFolder, namespace: str) -> Iterator[list[dict[str, Any]]]:
    """Pods of the run that have not ended, again and again until there are none."""
    from components.cluster.client import connect
    from components.cluster.jobs import list_pods_of_run

    cluster = connect(namespace)
    while pods := [
        pod
        for pod in list_pods_of_run(cluster, folder.run, folder.identity())
        if _is_own(folder, pod) and pod["status"].get("phase") not in ("Succeeded", "Failed")
    ]:
        yield pods
        time.sleep(_LOOK_S)


def _is_stuck(pod: dict[str, Any], waited_s: float) -> bool:
    from components.cluster.jobs import LEFT_S

    due = pod["metadata"].get("deletionTimestamp")  # the end of its grace
    if due is None:
        return waited_s > LEFT_S
    return datetime.now(UTC) > datetime.fromisoformat(due) + timedelta(seconds=LEFT_S)


def _tell_of_stuck(pods: list[dict[str, Any]], namespace: str) -> None:
    running = [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    if running:
        raise UserError(
            f"pods of an earlier attempt still run in the namespace '{namespace}', and nobody ends them "
            f"({', '.join(running)}): delete them, and start this run again"
        )
    names = ", ".join(pod["metadata"]["name"] for pod in pods)
    print(f"pods of an earlier attempt do not leave ({names}); their machines may be lost", flush=True)


def _stop_in_cluster(folder: RunFolder) -> int:
    places = _places(folder)
    if not places:
        return 0
    from components.cluster.client import REFUSED_S, connect
    from components.cluster.jobs import list_jobs
    from components.cluster.kinds import KINDS, RUN_ID_LABEL
    from components.jobs.launchers.cluster import stop_job

    stopped = 0
    for launcher, namespace in sorted(places):
        cluster, kind = connect(namespace), KINDS[launcher]
        for job in list_jobs(cluster, kind, folder.run, patience_s=60, refused_s=REFUSED_S):
            if _is_own(folder, job) and job["metadata"]["labels"].get(RUN_ID_LABEL) == folder.identity():
                stopped += stop_job(cluster, kind, job)
    return stopped


def _is_own(folder: RunFolder, made: dict[str, Any]) -> bool:
    """Whether a job or pod of the run is of the folder's purpose."""
    from components.cluster.kinds import PURPOSE_LABEL

    return bool(made["metadata"].get("labels", {}).get(PURPOSE_LABEL) == folder.purpose)
