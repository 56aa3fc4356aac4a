"""What SageMaker HyperPod says of machines, by labels of their nodes.

Source: https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-resiliency-node-labels.html
"""

import json
from collections.abc import Collection
from typing import Any

from components.cluster.client import TIMEOUT_S, Cluster, patiently
from components.cluster.errors import ClusterRefused, ClusterUnavailable

HEALTH_LABEL = "sagemaker.amazonaws.com/node-health-status"

_DEEP_LABEL = "sagemaker.amazonaws.com/deep-health-check-status"

UNFIT = ("Unschedulable", "UnschedulablePendingReboot", "UnschedulablePendingReplacement")
"""Values of `HEALTH_LABEL` of machines that are about to be rebooted or replaced."""


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


def why_unfit(labels: dict[str, str]) -> str | None:
    """What speaks against a machine with these labels; None: nothing."""
    if (status := labels.get(HEALTH_LABEL)) in UNFIT:
        return f"HyperPod says it is {status}"
    if labels.get(_DEEP_LABEL) == "Failed":
        return "it failed HyperPod's deep health check"
    return None


def _labels(cluster: Cluster, host: str) -> dict[str, str]:
    node: dict[str, Any] = patiently(
        f"read the node '{host}'",
        lambda: json.loads(cluster.core.read_node(host, _preload_content=False, _request_timeout=TIMEOUT_S).data),
        patience_s=5,
    )
    labels: dict[str, str] = node["metadata"].get("labels") or {}
    return labels
