"""Stops jobs of a run that nobody supervises any more."""

from components.train.attempts import records
from components.train.launchers import local
from training.run_folder import RunFolder


def stop_leftovers(folder: RunFolder) -> int:
    """Stop what earlier launchers of a run left, on this machine and in the cluster; returns how many jobs.

    Comes back when they are gone: ranks that outlive their launcher could still save beside those of the next
    attempt.
    """
    return _stop_in_cluster(folder) + local.stop_leftovers(folder.path)


def _stop_in_cluster(folder: RunFolder) -> int:
    namespaces = {(r["launcher"], r["namespace"]) for r in records(folder) if r.get("namespace")}
    if not namespaces:
        return 0  # this run never had a job in a cluster, so none is asked
    from components.cluster.client import connect
    from components.cluster.jobs import list_jobs
    from components.cluster.kinds import KINDS, RUN_ID_LABEL
    from components.train.launchers.cluster import stop_job

    stopped = 0
    for launcher, namespace in sorted(namespaces):
        cluster, kind = connect(namespace), KINDS[launcher]
        for job in list_jobs(cluster, kind, folder.run):
            if job["metadata"]["labels"].get(RUN_ID_LABEL) == folder.identity():
                stopped += stop_job(cluster, kind, job)
    return stopped
