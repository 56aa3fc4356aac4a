"""Asks a cluster what speaks against some of its machines."""

import json
from collections.abc import Collection
from typing import Any

from components.cluster.client import TIMEOUT_S, Cluster, patiently
from components.cluster.errors import ClusterRefused, ClusterUnavailable
from components.cluster.node_labels import why_unfit


def unhealthy_hosts(cluster: Cluster, hosts: Collection[str]) -> dict[str, str]:
    """Which of some machines HyperPod does not want to be used → why; none where nodes may not be read."""
    found = {}
    for host in sorted(filter(None, hosts)):
        try:
            labels = _labels(cluster, host)
        except ClusterUnavailable:
            continue  # what is decided must not wait for it
        except ClusterRefused as error:
            if error.status == 404:
                continue  # the machine is gone
            return {}
        if (why := why_unfit(labels)) is not None:
            found[host] = why
    return found


def _labels(cluster: Cluster, host: str) -> dict[str, str]:
    node: dict[str, Any] = patiently(
        f"read the node '{host}'",
        lambda: json.loads(cluster.core.read_node(host, _preload_content=False, _request_timeout=TIMEOUT_S).data),
        patience_s=5,
    )
    labels: dict[str, str] = node["metadata"].get("labels") or {}
    return labels
