"""Checks of the cluster that a job will run in, all with reads that take milliseconds."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import kubernetes

from components.cluster.client import TIMEOUT_S, Cluster, connect, patiently
from components.cluster.errors import ClusterRefused, ClusterUnavailable
from components.cluster.inside import is_inside
from components.cluster.kinds import KINDS, JobKind
from components.cluster.probe import is_installed, preferred_version
from components.preflight.checks import Finding
from components.preflight.nodes import find_nodes
from components.preflight.rendezvous import find_etcd
from training.config import ClusterConfig, RunConfig
from training.errors import UserError

_PATIENCE_S = 10

_FIRST_PATIENCE_S = 4
"""Of the first request, which tells whether the others are worth their wait."""

_KUEUE = "kueue.x-k8s.io"

_POD_RIGHTS = (("", "pods", ("get", "list", "watch")), ("", "pods/log", ("get",)), ("", "events", ("list",)))

_JOB_RIGHTS = ("create", "get", "list", "patch", "delete")


def cluster_checks(config: RunConfig) -> dict[str, Callable[[], Finding]]:
    """The checks by subject, for a run whose launcher is a kind of job.

    Where there is no cluster to talk to, that is the only one.
    """
    kind = KINDS[config.cluster.launcher]
    try:
        cluster = _connect(config.cluster.namespace)
    except (UserError, ClusterUnavailable) as error:
        return {"cluster": partial(_no_cluster, error)}
    checks: dict[str, Callable[[], Finding]] = {
        "operator": partial(_operator, cluster, kind),
        "rights": partial(_rights, cluster, kind),
        "claim": partial(_claim, cluster, config.cluster),
        "nodes": partial(find_nodes, cluster, config),
    }
    if config.cluster.secrets or config.cluster.image_pull_secrets:
        checks["secrets"] = partial(_secrets, cluster, config.cluster)
    if config.cluster.queue and config.cluster.gang != "volcano":
        checks["queue"] = partial(_queue, cluster, config.cluster.queue)
    if config.cluster.etcd_endpoint:
        own_image = config.cluster.image is None and is_inside()
        checks["rendezvous"] = partial(find_etcd, config.cluster.etcd_endpoint, own_image=own_image)
    return checks


def _connect(namespace: str | None) -> Cluster:
    """A cluster that answers, and that knows who asks."""
    cluster = connect(namespace)
    version = kubernetes.client.VersionApi(cluster.api)
    try:
        patiently(
            "ask the cluster for its version",
            lambda: version.get_code(_preload_content=False, _request_timeout=TIMEOUT_S),
            _FIRST_PATIENCE_S,
        )
    except ClusterRefused as error:
        if error.status == 401:
            raise
    return cluster


def _no_cluster(error: UserError | ClusterUnavailable) -> Finding:
    raise error


def _operator(cluster: Cluster, kind: JobKind) -> Finding:
    if not is_installed(cluster, kind):
        raise UserError(
            f"the cluster has no {kind.kind} ({kind.api_version}): have its operator installed "
            "(deploy/kubernetes/README.md), or set cluster.launcher to a kind that it has, or to auto"
        )
    return Finding("operator", True, f"{kind.kind} {kind.api_version}")


def _rights(cluster: Cluster, kind: JobKind) -> Finding:
    needed = [(kind.group, kind.plural, _JOB_RIGHTS), *_POD_RIGHTS]
    missing = [
        f"{verb} {resource}"
        for group, resource, verbs in needed
        for verb in verbs
        if not _may(cluster, verb, group, resource)
    ]
    if missing:
        raise UserError(
            f"in the namespace '{cluster.namespace}' the service account of this step may not "
            f"{', '.join(missing)}: bind the role in deploy/kubernetes/base to it"
        )
    return Finding("rights", True, f"jobs, pods, logs and events in the namespace '{cluster.namespace}'")


def _may(cluster: Cluster, verb: str, group: str, resource: str) -> bool:
    name, _, subresource = resource.partition("/")
    attributes = {"namespace": cluster.namespace, "verb": verb, "group": group, "resource": name}
    if subresource:
        attributes["subresource"] = subresource
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer: dict[str, Any] = patiently(
        "ask for this account's rights",
        lambda: cluster.api.call_api(
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            "POST",
            body=review,
            header_params={"Accept": "application/json", "Content-Type": "application/json"},
            response_type="object",
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            _request_timeout=TIMEOUT_S,
        ),
        _PATIENCE_S,
    )
    return bool(answer["status"].get("allowed"))


def _claim(cluster: Cluster, settings: ClusterConfig) -> Finding:
    name = settings.store_claim
    if name is None:
        return Finding("claim", True, "the volumes of the train task")
    what = f"the claim '{name}' in the namespace '{cluster.namespace}'"
    claim = _read(
        f"read {what}",
        lambda: cluster.core.read_namespaced_persistent_volume_claim(
            name, cluster.namespace, _request_timeout=TIMEOUT_S
        ),
        missing=f"{what} does not exist: create it (deploy/kubernetes/base), or set store_claim to one that does",
    )
    if claim is None:
        return Finding("claim", True, f"'{name}', which this account may not look at")
    modes = claim.spec.access_modes or []
    if "ReadWriteOnce" in modes and _has_one_node(cluster):
        return Finding("claim", True, f"'{name}', ReadWriteOnce, which is enough on the cluster's only node")
    if "ReadWriteMany" not in modes:
        raise UserError(
            f"{what} is {', '.join(modes)}, so only one machine can use it at a time: the store needs a claim "
            "with the access mode ReadWriteMany (NFS, EFS, FSx for Lustre, CephFS …)"
        )
    if claim.status.phase == "Lost":
        raise UserError(f"{what} has lost its volume: restore it, or set store_claim to another")
    return Finding("claim", True, f"'{name}', ReadWriteMany, {claim.status.phase or 'Pending'}")


def _has_one_node(cluster: Cluster) -> bool:
    """Whether all pods share a machine, and with it a volume that is mounted once per machine."""
    try:
        answer = patiently(
            "list the cluster's nodes",
            lambda: cluster.core.list_node(limit=2, _preload_content=False, _request_timeout=TIMEOUT_S),
            _PATIENCE_S,
        )
    except ClusterRefused:
        return False
    return len(json.loads(answer.data)["items"]) == 1


def _secrets(cluster: Cluster, settings: ClusterConfig) -> Finding:
    wanted: dict[str, set[str]] = {name: set() for name in settings.image_pull_secrets}
    for reference in settings.secrets.values():
        secret, _, key = reference.partition("/")
        wanted.setdefault(secret, set()).add(key)
    unseen = []
    for name, keys in wanted.items():
        what = f"the secret '{name}' in the namespace '{cluster.namespace}'"
        secret = _read(
            f"read {what}",
            lambda name=name: cluster.core.read_namespaced_secret(  # type: ignore[misc]
                name, cluster.namespace, _request_timeout=TIMEOUT_S
            ),
            missing=f"{what} does not exist: create it with kubectl create secret, or correct cluster.secrets and "
            "cluster.image_pull_secrets",
        )
        if secret is None:
            unseen.append(name)
        elif absent := keys - set(secret.data or {}):
            raise UserError(f"{what} has no key {', '.join(sorted(absent))}: add it, or correct cluster.secrets")
    note = f"; this account may not look at {', '.join(unseen)}" if unseen else ""
    return Finding("secrets", True, f"{', '.join(wanted)}{note}")


def _queue(cluster: Cluster, name: str) -> Finding:
    version = preferred_version(cluster, _KUEUE)
    if version is None:
        raise UserError(
            f"cluster.queue is '{name}', but the cluster has no Kueue: have it installed, leave cluster.queue "
            "unset, or set cluster.gang to volcano if it is a queue of Volcano"
        )
    what = f"the LocalQueue '{name}' in the namespace '{cluster.namespace}'"
    queue = _read(
        f"read {what}",
        lambda: cluster.custom.get_namespaced_custom_object(
            _KUEUE, version, cluster.namespace, "localqueues", name, _request_timeout=TIMEOUT_S
        ),
        missing=f"{what} does not exist: set cluster.queue to one that does (kubectl get localqueues)",
    )
    if queue is None:
        return Finding("queue", True, f"'{name}', which this account may not look at")
    return Finding(
        "queue", True, f"Kueue's '{name}', {queue.get('status', {}).get('pendingWorkloads', 0)} waiting"
    )


def _read(doing: str, call: Callable[[], Any], missing: str) -> Any:
    """What was read; None where this account may not see it, which need not be an obstacle for the pods."""
    try:
        return patiently(doing, call, _PATIENCE_S)
    except ClusterRefused as error:
        if error.status == 404:
            raise UserError(missing) from None
        if error.status == 403:
            return None
        raise
