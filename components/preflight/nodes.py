"""Whether the cluster has machines that the job's pods fit on."""

import json
import re
from typing import Any

from components.cluster.client import TIMEOUT_S, Cluster, patiently
from components.cluster.errors import ClusterRefused
from components.preflight.checks import Finding
from training.config import RunConfig
from training.errors import UserError

_FACTORS = {
    "": 1,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}


def find_nodes(cluster: Cluster, config: RunConfig) -> Finding:
    """Look for machines that take the job's pods together, with the size and the labels that they ask for.

    Others may use them now: then the job waits, which is no mistake.

    Raises:
        UserError: There are too few, and the cluster adds none by itself.
    """
    settings, needed = config.cluster, config.parallel.num_nodes
    try:
        answer = patiently(
            "list the cluster's nodes",
            lambda: cluster.core.list_node(_preload_content=False, _request_timeout=TIMEOUT_S),
            patience_s=10,
        )
    except ClusterRefused as error:
        if error.status == 403:
            return Finding("nodes", True, "not looked at: this account may not list nodes")
        raise
    nodes = [node for node in json.loads(answer.data)["items"] if not node["spec"].get("unschedulable")]
    matching = [node for node in nodes if _has_labels(node, settings.node_selector)]
    asked = _asked(config)
    fitting = [node for node in matching if _room(node, asked, needed)]
    room = sum(_room(node, asked, needed) for node in matching)
    wants = ", ".join(f"{amount:g} {name}" for name, amount in asked.items()) or "no resources of their own"
    if room >= needed:
        return Finding("nodes", True, f"{len(fitting)} machine(s) fit {needed} pod(s) with {wants}")
    if settings.autoscaling:
        return Finding("nodes", True, f"room for {room} of {needed} pods now; machines are added on demand")
    most = {name: max((_offers(node, name) for node in matching), default=0) for name in asked}
    offered = ", ".join(f"{amount:g} {name}" for name, amount in most.items())
    raise UserError(
        f"the job has {needed} pod(s) that each ask for {wants}, and {len(fitting)} of the cluster's "
        f"{len(nodes)} machines fit ({len(matching)} have the labels of cluster.node_selector; at most {offered} "
        "on one): ask for less, correct cluster.gpu_resource or cluster.node_selector, or set cluster.autoscaling "
        "where machines are added on demand"
    )


def _asked(config: RunConfig) -> dict[str, float]:
    settings = config.cluster
    gpus = settings.gpus_per_node
    if gpus is None:
        gpus = config.parallel.procs_per_node or 0
    given = {
        settings.gpu_resource: str(gpus),
        "cpu": settings.cpus_per_node or "0",
        "memory": settings.memory_per_node or "0",
        "vpc.amazonaws.com/efa": str(settings.efa_per_node),
        **settings.resources,
    }
    return {name: amount for name, text in given.items() if (amount := quantity(text)) > 0}


def _room(node: dict[str, Any], asked: dict[str, float], needed: int) -> int:
    """How many of the job's pods an empty machine takes, as far as they matter; small ones can share it."""
    return min([needed, *(int(_offers(node, name) // amount) for name, amount in asked.items())])


def _has_labels(node: dict[str, Any], wanted: dict[str, str]) -> bool:
    labels = node["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in wanted.items())


def _offers(node: dict[str, Any], name: str) -> float:
    return quantity(node["status"].get("allocatable", {}).get(name, "0"))


def quantity(text: str) -> float:
    """A Kubernetes quantity as a number: cores, bytes or pieces."""
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)", text.strip())
    assert match and match[2] in _FACTORS, f"{text!r} is no quantity"
    return float(match[1]) * _FACTORS[match[2]]
