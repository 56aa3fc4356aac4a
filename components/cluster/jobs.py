"""Requests about jobs and what belongs to them."""

import json
import time
from typing import Any

from kubernetes import client

from components.cluster.client import REFUSED_S, TIMEOUT_S, Cluster, patiently
from components.cluster.errors import ClusterRefused
from components.cluster.kinds import RUN_ID_LABEL, RUN_LABEL, JobKind
from training.errors import UserError

_PAGE = 500

LEFT_S = 30.0
"""Beyond the pods' own grace, for the cluster to remove what was told to stop."""

_LOOK_S = 0.5


def create_job(
    cluster: Cluster, kind: JobKind, manifest: dict[str, Any], refused_s: float = 0.0
) -> dict[str, Any]:
    """Create a job, or find it: a name that exists already is returned as it is, unless that job is leaving.

    Args:
        cluster: Where.
        kind: Of the job.
        manifest: Of the job.
        refused_s: How long to try although the account is refused.

    Raises:
        UserError: A job of this name is being deleted, and stays.
        ClusterRefused: The manifest or the rights do not suffice.
        ClusterUnavailable: No answer for a minute.
    """
    name = manifest["metadata"]["name"]
    started = time.monotonic()
    while True:
        try:
            return _create(cluster, kind, manifest, refused_s)
        except ClusterRefused as error:
            if error.reason != "AlreadyExists":
                raise
        found = get_job(cluster, kind, name, refused_s=refused_s)
        if found is not None:
            if "deletionTimestamp" not in found["metadata"]:
                return found
            if time.monotonic() - started > grace_s(found) + LEFT_S:
                raise UserError(
                    f"the {kind.kind} '{name}' in the namespace '{cluster.namespace}' was deleted, but it or its "
                    "pods stay (a lost machine, or a finalizer): remove them by force, and start this step again"
                )
            time.sleep(_LOOK_S)


def grace_s(job: dict[str, Any]) -> int:
    """Seconds that the pods of a job may take to leave."""
    spec = job["spec"].get("pytorchReplicaSpecs", {}).get("Worker", {}).get("template", {}).get("spec", {})
    grace: int = spec.get("terminationGracePeriodSeconds", 30)
    return grace


def _create(cluster: Cluster, kind: JobKind, manifest: dict[str, Any], refused_s: float) -> dict[str, Any]:
    # Strict, because the server would drop a field that it does not know, and the job would be another.
    created: dict[str, Any] = patiently(
        f"create the {kind.kind} '{manifest['metadata']['name']}' in the namespace '{cluster.namespace}'",
        lambda: cluster.custom.create_namespaced_custom_object(
            kind.group,
            kind.version,
            cluster.namespace,
            kind.plural,
            manifest,
            field_validation="Strict",
            _request_timeout=TIMEOUT_S,
        ),
        refused_s=refused_s,
    )
    return created


def get_job(
    cluster: Cluster, kind: JobKind, name: str, patience_s: float = 60.0, refused_s: float = 0.0
) -> dict[str, Any] | None:
    """A job as it is now; None if there is none."""
    try:
        job: dict[str, Any] = patiently(
            f"read the {kind.kind} '{name}' in the namespace '{cluster.namespace}'",
            lambda: cluster.custom.get_namespaced_custom_object(
                kind.group, kind.version, cluster.namespace, kind.plural, name, _request_timeout=TIMEOUT_S
            ),
            patience_s,
            refused_s,
        )
    except ClusterRefused as error:
        if error.status == 404:
            return None
        raise
    return job


def list_jobs(
    cluster: Cluster, kind: JobKind, run: str | None = None, patience_s: float = 15.0, refused_s: float = 0.0
) -> list[dict[str, Any]]:
    """Jobs that Shardline made, of one run or of all; none where the kind is not installed."""
    selector = RUN_LABEL if run is None else f"{RUN_LABEL}={run}"
    try:
        answer: dict[str, Any] = patiently(
            f"list the {kind.plural} in the namespace '{cluster.namespace}'",
            lambda: cluster.custom.list_namespaced_custom_object(
                kind.group,
                kind.version,
                cluster.namespace,
                kind.plural,
                label_selector=selector,
                _request_timeout=TIMEOUT_S,
            ),
            patience_s,
            refused_s,
        )
    except ClusterRefused as error:
        if error.status == 404:
            return []
        raise
    jobs: list[dict[str, Any]] = answer["items"]
    return jobs


def annotate_job(cluster: Cluster, kind: JobKind, name: str, annotations: dict[str, str]) -> None:
    """Set annotations of a job, in one try."""
    _patch(f"annotate the {kind.kind} '{name}'", cluster, kind, name, {"annotations": annotations}, 0)


def adopt_job(cluster: Cluster, kind: JobKind, name: str, owner: dict[str, Any]) -> None:
    """Make a job die with another owner than before."""
    _patch(f"adopt the {kind.kind} '{name}'", cluster, kind, name, {"ownerReferences": [owner]}, 15)


def _patch(
    doing: str, cluster: Cluster, kind: JobKind, name: str, metadata: dict[str, Any], patience_s: float
) -> None:
    patiently(
        doing,
        lambda: cluster.custom.patch_namespaced_custom_object(
            kind.group,
            kind.version,
            cluster.namespace,
            kind.plural,
            name,
            {"metadata": metadata},
            _request_timeout=TIMEOUT_S,
        ),
        patience_s,
    )


def delete_job(
    cluster: Cluster,
    kind: JobKind,
    name: str,
    patience_s: float = 60.0,
    *,
    uid: str | None = None,
    refused_s: float = 0.0,
) -> bool:
    """Tell a job's pods to stop; the job stays until the last is gone. Returns whether there was one.

    Args:
        cluster: Where.
        kind: Of the job.
        name: Of the job.
        patience_s: How long to try.
        uid: Only this job, and not another of its name.
        refused_s: How long to try although the account is refused.
    """
    # In the background, the job would be gone while its pods still save.
    options: dict[str, Any] = {"propagationPolicy": "Foreground"}
    if uid is not None:
        options["preconditions"] = {"uid": uid}
    try:
        patiently(
            f"delete the {kind.kind} '{name}' in the namespace '{cluster.namespace}'",
            lambda: cluster.custom.delete_namespaced_custom_object(
                kind.group,
                kind.version,
                cluster.namespace,
                kind.plural,
                name,
                body=options,
                _request_timeout=TIMEOUT_S,
            ),
            patience_s,
            refused_s,
        )
    except ClusterRefused as error:
        if error.status == 404 or (error.status == 409 and uid is not None):
            return False
        raise
    return True


def list_pods(
    cluster: Cluster, kind: JobKind, job: str, patience_s: float = 60.0, refused_s: float = 0.0
) -> tuple[list[dict[str, Any]], str]:
    """The pods of a job, as plain JSON, and the resource version of the list."""
    doing = f"list the pods of '{job}' in the namespace '{cluster.namespace}'"
    return _list_pods(cluster, doing, f"{kind.pod_label}={job}", patience_s, refused_s)


def list_pods_of_run(cluster: Cluster, run: str, run_id: str) -> list[dict[str, Any]]:
    """The pods of all of a run's jobs, also of those that are gone."""
    doing = f"list the pods of the run '{run}' in the namespace '{cluster.namespace}'"
    return _list_pods(cluster, doing, f"{RUN_LABEL}={run},{RUN_ID_LABEL}={run_id}", 60, REFUSED_S)[0]


def _list_pods(
    cluster: Cluster, doing: str, selector: str, patience_s: float, refused_s: float
) -> tuple[list[dict[str, Any]], str]:
    def read() -> Any:
        # Not through the client's models: of 64 pods they cost more than all the rest of a look.
        answer = cluster.core.list_namespaced_pod(
            cluster.namespace, label_selector=selector, _preload_content=False, _request_timeout=TIMEOUT_S
        )
        return json.loads(answer.data)  # here, because the connection can still break

    content = patiently(doing, read, patience_s, refused_s)
    return content["items"], content["metadata"]["resourceVersion"]


def list_events(cluster: Cluster, names: set[str]) -> list[dict[str, Any]]:
    """The events about objects of these names, oldest first; empty where they may not be read."""
    events: list[dict[str, Any]] = []
    page = None
    try:
        while True:
            content = patiently(
                f"list the events in the namespace '{cluster.namespace}'",
                lambda token=page: json.loads(  # type: ignore[misc]
                    cluster.core.list_namespaced_event(
                        cluster.namespace,
                        limit=_PAGE,
                        _continue=token,
                        _preload_content=False,
                        _request_timeout=TIMEOUT_S,
                    ).data
                ),
                patience_s=15,
            )
            events += [item for item in content["items"] if item["involvedObject"].get("name") in names]
            page = content["metadata"].get("continue")
            if not page:
                break
    except ClusterRefused as error:
        if error.status not in (403, 410):
            raise
    return sorted(events, key=_when)


def _when(event: dict[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")


def owner_reference(pod: client.V1Pod) -> dict[str, Any]:
    """Of a pod, so that what it creates is removed with it."""
    return {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
