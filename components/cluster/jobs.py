"""Requests about jobs and what belongs to them."""

import json
import time
from typing import Any

from kubernetes import client

from components.cluster.client import TIMEOUT_S, Cluster, patiently
from components.cluster.errors import ClusterRefused
from components.cluster.kinds import RUN_LABEL, JobKind

_PAGE = 500

_LEAVING_S = 120
"""How long a job that is being deleted may keep its name from a new one."""

_LOOK_S = 0.5


def create_job(cluster: Cluster, kind: JobKind, manifest: dict[str, Any]) -> dict[str, Any]:
    """Create a job, or find it: a name that exists already is returned as it is, unless that job is leaving.

    Raises:
        ClusterRefused: The manifest or the rights do not suffice.
        ClusterUnavailable: No answer for a minute.
    """
    name = manifest["metadata"]["name"]
    deadline = time.monotonic() + _LEAVING_S
    while True:
        try:
            return _create(cluster, kind, manifest)
        except ClusterRefused as error:
            if error.reason != "AlreadyExists":
                raise
        found = get_job(cluster, kind, name)
        if found is not None:
            leaves = "deletionTimestamp" in found["metadata"]
            if not leaves or time.monotonic() > deadline:
                return found
            time.sleep(_LOOK_S)


def _create(cluster: Cluster, kind: JobKind, manifest: dict[str, Any]) -> dict[str, Any]:
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
    )
    return created


def get_job(cluster: Cluster, kind: JobKind, name: str, patience_s: float = 60.0) -> dict[str, Any] | None:
    """A job as it is now; None if there is none."""
    try:
        job: dict[str, Any] = patiently(
            f"read the {kind.kind} '{name}' in the namespace '{cluster.namespace}'",
            lambda: cluster.custom.get_namespaced_custom_object(
                kind.group, kind.version, cluster.namespace, kind.plural, name, _request_timeout=TIMEOUT_S
            ),
            patience_s,
        )
    except ClusterRefused as error:
        if error.status == 404:
            return None
        raise
    return job


def list_jobs(cluster: Cluster, kind: JobKind, run: str | None = None) -> list[dict[str, Any]]:
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
            patience_s=15,
        )
    except ClusterRefused as error:
        if error.status == 404:
            return []
        raise
    jobs: list[dict[str, Any]] = answer["items"]
    return jobs


def annotate_job(cluster: Cluster, kind: JobKind, name: str, annotations: dict[str, str]) -> None:
    """Set annotations of a job, in one try."""
    patiently(
        f"annotate the {kind.kind} '{name}'",
        lambda: cluster.custom.patch_namespaced_custom_object(
            kind.group,
            kind.version,
            cluster.namespace,
            kind.plural,
            name,
            {"metadata": {"annotations": annotations}},
            _request_timeout=TIMEOUT_S,
        ),
        patience_s=0,
    )


def adopt_job(cluster: Cluster, kind: JobKind, name: str, owner: dict[str, Any]) -> None:
    """Make a job die with another owner than before."""
    patiently(
        f"adopt the {kind.kind} '{name}'",
        lambda: cluster.custom.patch_namespaced_custom_object(
            kind.group,
            kind.version,
            cluster.namespace,
            kind.plural,
            name,
            {"metadata": {"ownerReferences": [owner]}},
            _request_timeout=TIMEOUT_S,
        ),
        patience_s=15,
    )


def delete_job(cluster: Cluster, kind: JobKind, name: str, patience_s: float = 60.0) -> bool:
    """Tell a job's pods to stop; the job stays until the last is gone. Returns whether there was one."""
    try:
        patiently(
            f"delete the {kind.kind} '{name}' in the namespace '{cluster.namespace}'",
            lambda: cluster.custom.delete_namespaced_custom_object(
                kind.group,
                kind.version,
                cluster.namespace,
                kind.plural,
                name,
                # In the background, the job would be gone while its pods still save.
                propagation_policy="Foreground",
                _request_timeout=TIMEOUT_S,
            ),
            patience_s,
        )
    except ClusterRefused as error:
        if error.status == 404:
            return False
        raise
    return True


def list_pods(
    cluster: Cluster, kind: JobKind, job: str, patience_s: float = 60.0
) -> tuple[list[dict[str, Any]], str]:
    """The pods of a job, as plain JSON, and the resource version of the list."""
    # Not through the client's models: of 64 pods they cost more than all the rest of a look.
    answer = patiently(
        f"list the pods of '{job}' in the namespace '{cluster.namespace}'",
        lambda: cluster.core.list_namespaced_pod(
            cluster.namespace,
            label_selector=f"{kind.pod_label}={job}",
            _preload_content=False,
            _request_timeout=TIMEOUT_S,
        ),
        patience_s,
    )
    content = json.loads(answer.data)
    return content["items"], content["metadata"]["resourceVersion"]


def list_events(cluster: Cluster, names: set[str]) -> list[dict[str, Any]]:
    """The events about objects of these names, oldest first; empty where they may not be read."""
    events: list[dict[str, Any]] = []
    page = None
    try:
        while True:
            answer = patiently(
                f"list the events in the namespace '{cluster.namespace}'",
                lambda token=page: cluster.core.list_namespaced_event(  # type: ignore[misc]
                    cluster.namespace,
                    limit=_PAGE,
                    _continue=token,
                    _preload_content=False,
                    _request_timeout=TIMEOUT_S,
                ),
                patience_s=15,
            )
            content = json.loads(answer.data)
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
