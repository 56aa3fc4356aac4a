"""The steps that a pod's status goes through."""

import secrets
from datetime import UTC, datetime

from tests.doubles.cluster.objects import timestamp

ORDER = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


def scheduled(pod, node):
    pod["spec"]["nodeName"] = node
    _conditions(pod, PodScheduled="True")


def unschedulable(pod, message):
    _conditions(pod, PodScheduled=("False", "Unschedulable", message))


def creating(pod, address):
    """The kubelet has seen the pod."""
    pod["status"] |= {"startTime": timestamp(), "hostIP": address, "hostIPs": [{"ip": address}]}
    if init := pod["spec"].get("initContainers"):
        names = ", ".join(container["name"] for container in init)
        initialized = ("False", "ContainersNotInitialized", f"containers with incomplete status: [{names}]")
        pod["status"]["initContainerStatuses"] = [
            _container(container, {"waiting": {"reason": "PodInitializing"}}) for container in init
        ]
    else:
        initialized = "True"
    reason = "PodInitializing" if init else "ContainerCreating"
    pod["status"]["containerStatuses"] = [
        _container(container, {"waiting": {"reason": reason}}) for container in pod["spec"]["containers"]
    ]
    unready = ("False", "ContainersNotReady", f"containers with unready status: [{_names(pod)}]")
    _conditions(
        pod,
        PodReadyToStartContainers="False",
        Initialized=initialized,
        Ready=unready,
        ContainersReady=unready,
    )


def waiting(pod, reason, message):
    pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": reason, "message": message}}


def ready_to_start(pod):
    _conditions(pod, PodReadyToStartContainers="True")


def initializing(pod, address):
    pod["status"] |= {"podIP": address, "podIPs": [{"ip": address}]}
    for status in pod["status"]["initContainerStatuses"]:
        status |= {"started": True, "state": {"running": {"startedAt": timestamp()}}}


def initialized(pod):
    for status in pod["status"]["initContainerStatuses"]:
        started = status["state"]["running"]["startedAt"]
        ended = {"exitCode": 0, "reason": "Completed", "startedAt": started, "finishedAt": timestamp()}
        status |= {"ready": True, "started": False, "state": {"terminated": ended}}
    _conditions(pod, Initialized="True")


def not_initialized(pod, code):
    for status in pod["status"]["initContainerStatuses"]:
        started = status["state"]["running"]["startedAt"]
        ended = {"exitCode": code, "reason": "Error", "startedAt": started, "finishedAt": timestamp()}
        status |= {"ready": False, "started": False, "state": {"terminated": ended}}
    pod["status"]["phase"] = "Failed"


def running(pod, address):
    pod["status"] |= {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    state = {"running": {"startedAt": timestamp()}}
    container = f"containerd://{secrets.token_hex(32)}"
    pod["status"]["containerStatuses"][0] |= {
        "state": state,
        "ready": True,
        "started": True,
        "containerID": container,
    }
    _conditions(pod, Ready="True", ContainersReady="True")


def terminated(pod, code, reason, message=None):
    """The container has ended; the pod's phase follows a moment later."""
    status = pod["status"]["containerStatuses"][0]
    started = status["state"].get("running", {}).get("startedAt", timestamp(datetime.fromtimestamp(0, UTC)))
    ended = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": timestamp()}
    if message:
        ended["message"] = message
    if "containerID" in status:
        ended["containerID"] = status["containerID"]
    status |= {"ready": False, "started": False, "state": {"terminated": ended}}
    unready = ("False", "PodCompleted" if code == 0 else "PodFailed")
    _conditions(pod, Ready=unready, ContainersReady=unready)
    if code == 0:
        _conditions(pod, Initialized=("True", "PodCompleted"))


def finished(pod):
    code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
    pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
    _conditions(pod, PodReadyToStartContainers="False")


def evicted(pod, message):
    pod["status"] |= {"reason": "Evicted", "message": message}


def node_not_ready(pod):
    _conditions(pod, Ready="False")


def disrupted(pod):
    message = "Taint manager: deleting due to NoExecute taint"
    _conditions(pod, DisruptionTarget=("True", "DeletionByTaintManager", message))


def _container(container, state):
    return {
        "name": container["name"],
        "state": state,
        "lastState": {},
        "ready": False,
        "restartCount": 0,
        "image": container["image"],
        "imageID": "",
        "started": False,
    }


def _names(pod):
    return ", ".join(container["name"] for container in pod["spec"]["containers"])


def _conditions(pod, **changes):
    """Set conditions, given as a status or as status, reason and message."""
    present = {each["type"]: each for each in pod["status"].get("conditions", [])}
    for kind, change in changes.items():
        status, reason, message = (*((change,) if isinstance(change, str) else change), None, None)[:3]
        new = {
            "type": kind,
            "observedGeneration": 1,
            "status": status,
            "lastProbeTime": None,
            "lastTransitionTime": timestamp(),
            **({"reason": reason} if reason else {}),
            **({"message": message} if message else {}),
        }
        old = present.get(kind)
        if old and old["status"] == status:
            new["lastTransitionTime"] = old["lastTransitionTime"]
        present[kind] = new
    order = [*ORDER, *(kind for kind in present if kind not in ORDER)]
    pod["status"]["conditions"] = [present[kind] for kind in order if kind in present]
