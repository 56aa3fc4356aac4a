"""Gives pods to nodes, or says why none fits."""

import re
from collections import Counter

from tests.doubles.cluster import pod_status
from tests.doubles.cluster.controller import Controller
from tests.doubles.cluster.objects import is_deleted
from tests.doubles.cluster.recorder import Recorder
from tests.doubles.cluster.resources import CLAIMS, NODES, PODS

SCALE = {
    "": 1,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
HELPLESS = "Preemption is not helpful for scheduling"
AFFINITY = "node(s) didn't match Pod's node affinity/selector"
TAINT = "node(s) had untolerated taint(s)"


class Scheduler:
    def __init__(self, store, lag):
        self._store = store
        self._events = Recorder(store, "default-scheduler")
        self._controller = Controller(store, "scheduler", self._step, lag)

    def stop(self):
        self._controller.stop()

    def _step(self):
        pods = self._store.list(PODS)
        waiting = [pod for pod in pods if "nodeName" not in pod["spec"] and not is_deleted(pod)]
        for pod in sorted(
            waiting, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"])
        ):
            self._schedule(pod)

    def _schedule(self, pod):
        metadata = pod["metadata"]
        node, message = self._choose(pod)
        with self._store.changed:
            current = self._store.find(PODS, metadata["namespace"], metadata["name"])
            if current is None or current["metadata"]["uid"] != metadata["uid"]:
                return
            key = PODS, metadata["namespace"], metadata["name"]
            if node:
                self._store.update(*key, lambda pod: pod_status.scheduled(pod, node))
                where = f"{metadata['namespace']}/{metadata['name']}"
                self._events.normal(pod, "Scheduled", f"Successfully assigned {where} to {node}")
            elif self._store.update(*key, lambda pod: pod_status.unschedulable(pod, message)) is not current:
                self._events.warning(pod, "FailedScheduling", message)

    def _choose(self, pod):
        """The node with most room, or the reason why there is none."""
        nodes = self._store.list(NODES)
        if not nodes:
            return None, "no nodes available to schedule pods"
        if problem := self._claims(pod):
            return None, f"0/{len(nodes)} nodes are available: {problem}. not found"
        reasons, helpful, fitting = Counter(), Counter(), []
        for node in nodes:
            found, could_help = self._fit(pod, node)
            if found is None:
                fitting.append(node)
                continue
            reasons.update(found)
            helpful["No preemption victims found for incoming pod" if could_help else HELPLESS] += 1
        if fitting:
            return max(fitting, key=lambda node: self._room(node, "nvidia.com/gpu"))["metadata"]["name"], None
        available = f"0/{len(nodes)} nodes are available"
        preemption = ", ".join(sorted(f"{count} {text}" for text, count in helpful.items()))
        why = ", ".join(sorted(f"{count} {text}" for text, count in reasons.items()))
        return None, f"{available}: {why}. no new claims to deallocate, preemption: {available}: {preemption}."

    def _claims(self, pod):
        for volume in pod["spec"].get("volumes", []):
            if name := volume.get("persistentVolumeClaim", {}).get("claimName"):
                claim = self._store.find(CLAIMS, pod["metadata"]["namespace"], name)
                if claim is None:
                    return f'persistentvolumeclaim "{name}" not found'
                if claim["status"]["phase"] != "Bound":
                    return "pod has unbound immediate PersistentVolumeClaims"
        return None

    def _fit(self, pod, node):
        """Why a pod does not fit, and whether it would if others were gone."""
        if node["spec"].get("unschedulable"):
            return ["node(s) were unschedulable"], False
        if any(not _tolerated(taint, pod["spec"]["tolerations"]) for taint in node["spec"].get("taints", [])):
            return [TAINT], False
        if not _wanted(pod["spec"], node):
            return [AFFINITY], False
        requests = _requests(pod)
        short = [name for name, amount in requests.items() if amount > self._room(node, name)]
        could_help = all(requests[name] <= _capacity(node, name) for name in short)
        return ([f"Insufficient {name}" for name in short], could_help) if short else (None, False)

    def _room(self, node, name):
        pods = [pod for pod in self._store.list(PODS) if pod["spec"].get("nodeName") == node["metadata"]["name"]]
        used = sum(_requests(pod).get(name, 0) for pod in pods if pod["status"]["phase"] in ("Pending", "Running"))
        return _capacity(node, name) - used


def quantity(text):
    """A Kubernetes quantity as a number."""
    number, suffix = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text)).groups()
    return float(number) * SCALE[suffix]


def _capacity(node, name):
    return quantity(node["status"]["allocatable"].get(name, "0"))


def _requests(pod):
    total = Counter()
    for container in pod["spec"]["containers"]:
        for name, amount in container["resources"].get("requests", {}).items():
            total[name] += quantity(amount)
    return total


def _tolerated(taint, tolerations):
    if taint["effect"] == "PreferNoSchedule":
        return True
    return any(
        each.get("key") in (None, taint["key"])
        and each.get("effect") in (None, "", taint["effect"])
        and (each.get("operator", "Equal") == "Exists" or each.get("value", "") == taint.get("value", ""))
        for each in tolerations
    )


def _wanted(spec, node):
    labels = node["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any(_matches(term, node, labels) for term in required["nodeSelectorTerms"])


def _matches(term, node, labels):
    expressions = [(each, labels.get(each["key"])) for each in term.get("matchExpressions", [])]
    expressions += [(each, node["metadata"]["name"]) for each in term.get("matchFields", [])]
    return bool(expressions) and all(_holds(each, value) for each, value in expressions)


def _holds(expression, value):
    values = expression.get("values", [])
    return {
        "In": lambda: value in values,
        "NotIn": lambda: value not in values,
        "Exists": lambda: value is not None,
        "DoesNotExist": lambda: value is None,
        "Gt": lambda: value is not None and int(value) > int(values[0]),
        "Lt": lambda: value is not None and int(value) < int(values[0]),
    }[expression["operator"]]()
