"""Whether a cluster has what is asked for."""

import json
from typing import Any

from components.cluster.client import TIMEOUT_S, Cluster, patiently
from components.cluster.errors import ClusterRefused
from components.cluster.kinds import JobKind


def is_installed(cluster: Cluster, kind: JobKind) -> bool:
    """Whether the API server knows a kind of job."""
    found = _discover(cluster, f"/apis/{kind.api_version}")
    return found is not None and any(item["name"] == kind.plural for item in found["resources"])


def preferred_version(cluster: Cluster, group: str) -> str | None:
    """The version in which the API server prefers to speak of a group; None if it does not know the group."""
    found = _discover(cluster, f"/apis/{group}")
    return None if found is None else str(found["preferredVersion"]["version"])


def _discover(cluster: Cluster, path: str) -> dict[str, Any] | None:
    """What the API server says of a path of its API; open to everyone. None: it has no such path."""
    try:
        content: dict[str, Any] = patiently(
            f"ask the cluster for {path}",
            lambda: json.loads(
                cluster.api.call_api(
                    path,
                    "GET",
                    header_params={"Accept": "application/json"},
                    auth_settings=["BearerToken"],
                    _preload_content=False,
                    _return_http_data_only=True,
                    _request_timeout=TIMEOUT_S,
                ).data
            ),
            patience_s=10,
        )
    except ClusterRefused as error:
        if error.status == 404:
            return None
        raise
    return content
