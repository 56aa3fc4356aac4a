"""Nodes, and what happens to pods when one is lost."""

import threading

from tests.doubles.cluster import pod_status
from tests.doubles.cluster.errors import ApiError
from tests.doubles.cluster.objects import timestamp
from tests.doubles.cluster.recorder import Recorder
from tests.doubles.cluster.resources import NODES, PODS

UNREACHABLE = "node.kubernetes.io/unreachable"
SYSTEM = {
    "architecture": "amd64",
    "bootID": "",
    "containerRuntimeVersion": "containerd://1.6.20",
    "kernelVersion": "6.1.0",
    "kubeProxyVersion": "",
    "kubeletVersion": "v1.36.2",
    "machineID": "",
    "operatingSystem": "linux",
    "osImage": "",
    "systemUUID": "",
}
CONDITIONS = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    "Ready": ("KubeletReady", "kubelet is posting ready status"),
}


def node(name, gpus=0, labels=None, taints=None):
    conditions = [
        {"type": kind, "status": "True" if kind == "Ready" else "False", "reason": reason, "message": message}
        for kind, (reason, message) in CONDITIONS.items()
    ]
    capacity = {"cpu": "64", "memory": "512Gi", "pods": "110", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                **(labels or {}),
            },
        },
        "spec": {"podCIDR": "10.0.1.0/24", **({"taints": taints} if taints else {})},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": conditions,
            "nodeInfo": SYSTEM,
        },
    }


class NodeLoss:
    """What the node controller does about a node that is silent, in a thread of its own."""

    def __init__(self, store, name, lags, closed):
        self._store = store
        self._name = name
        self._lags = lags
        self._closed = closed
        self._controller_events = Recorder(store, "node-controller")
        self._manager_events = Recorder(store, "taint-eviction-controller")
        self._thread = threading.Thread(target=self._run, name=f"loss-of-{name}", daemon=True)
        self._thread.start()

    def join(self):
        self._thread.join()

    def _run(self):
        if self._closed.wait(self._lags.node_lost):
            return
        self._store.update(NODES, None, self._name, _mark_lost)
        pods = [pod for pod in self._store.list(PODS) if pod["spec"].get("nodeName") == self._name]
        for pod in pods:
            self._change(pod, pod_status.node_not_ready)
            self._controller_events.warning(pod, "NodeNotReady", "Node is not ready")
        waits = {pod["metadata"]["uid"]: _tolerated(pod) * self._lags.toleration for pod in pods}
        passed = 0.0
        for pod in sorted(pods, key=lambda pod: waits[pod["metadata"]["uid"]]):
            wait = waits[pod["metadata"]["uid"]]
            if self._closed.wait(wait - passed):
                return
            passed = wait
            self._evict(pod)

    def _evict(self, pod):
        metadata = pod["metadata"]
        name = f"{metadata['namespace']}/{metadata['name']}"
        if self._change(pod, pod_status.disrupted):
            self._manager_events.normal(pod, "TaintManagerEviction", f"Marking for deletion Pod {name}")
            self._store.delete(PODS, metadata["namespace"], metadata["name"])

    def _change(self, pod, change):
        metadata = pod["metadata"]
        try:
            current = self._store.get(PODS, metadata["namespace"], metadata["name"])
            if current["metadata"]["uid"] != metadata["uid"]:
                return False
            self._store.update(PODS, metadata["namespace"], metadata["name"], change)
        except ApiError:
            return False
        return True


def _mark_lost(item):
    for condition in item["status"]["conditions"]:
        condition |= {
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
        }
    lost = [
        {"key": UNREACHABLE, "effect": effect, "timeAdded": timestamp()} for effect in ("NoSchedule", "NoExecute")
    ]
    item["spec"]["taints"] = [*item["spec"].get("taints", []), *lost]


def _tolerated(pod):
    for toleration in pod["spec"]["tolerations"]:
        if toleration.get("key") == UNREACHABLE and toleration.get("effect") == "NoExecute":
            return toleration.get("tolerationSeconds", 10**6)
    return 0
