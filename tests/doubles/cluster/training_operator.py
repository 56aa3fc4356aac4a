"""The training operator's controller of PyTorchJobs."""

import copy
import time
from datetime import UTC, datetime

from tests.doubles.cluster import pytorch_pods as parts
from tests.doubles.cluster.conditions import is_finished, is_true, set_condition
from tests.doubles.cluster.controller import Controller
from tests.doubles.cluster.defaults import (
    check_pod,
    check_service,
    default_pod,
    default_service,
    metadata_violations,
)
from tests.doubles.cluster.errors import ApiError, invalid
from tests.doubles.cluster.objects import is_deleted, timestamp
from tests.doubles.cluster.recorder import Recorder
from tests.doubles.cluster.resources import PODS, PYTORCHJOBS, SERVICES

FIRST_DELAY = 0.01
LONGEST_DELAY = 0.5


class TrainingOperator:
    """Looks at a job when it, its pods or its services have changed, and again where it failed."""

    def __init__(self, store):
        self._store = store
        self._events = Recorder(store, parts.CONTROLLER)
        self._seen = {}
        self._retries = {}
        self._ran = set()
        self._controller = Controller(store, "training-operator", self._step)

    def stop(self):
        self._controller.stop()

    def _step(self):
        now, waits = time.monotonic(), []
        for job in self._store.list(PYTORCHJOBS):
            uid = job["metadata"]["uid"]
            pods, services = self._owned(PODS, job), self._owned(SERVICES, job)
            marks = [each["metadata"]["resourceVersion"] for each in (job, *pods.values(), *services.values())]
            again, delay = self._retries.get(uid, (None, FIRST_DELAY))
            if self._seen.get(uid) == marks and (again is None or again > now):
                waits += [again - now] if again else []
                continue
            self._seen[uid] = marks
            self._retries.pop(uid, None)
            try:
                wait = self._reconcile(job, pods, services)
                if wait is not None:
                    self._retries[uid] = now + wait, FIRST_DELAY
            except ApiError as error:
                if error.status == 501:
                    raise
                self._retries[uid] = now + delay, min(2 * delay, LONGEST_DELAY)
            waits += [self._retries[uid][0] - now] if uid in self._retries else []
        return max(0.001, min(waits)) if waits else None

    def _owned(self, resource, job):
        """Pods or services of a job, by name."""
        return {
            item["metadata"]["name"]: item
            for item in self._store.list(resource, job["metadata"]["namespace"])
            if any(
                owner["uid"] == job["metadata"]["uid"] for owner in item["metadata"].get("ownerReferences") or []
            )
        }

    def _reconcile(self, job, pods, services):
        """One look at a job; returns the seconds until the next is due."""
        status = copy.deepcopy(job.get("status") or {})
        if is_deleted(job):
            return None
        if is_finished(status):
            return self._clean_up(job, status, pods)
        name = job["metadata"]["name"]
        set_condition(status, "Created", "PyTorchJobCreated", f"PyTorchJob {name} is created.")
        if job["spec"].get("runPolicy", {}).get("suspend"):
            self._suspend(job, status, pods)
            return None
        if is_true(status, "Suspended"):
            message = f"PyTorchJob {name} is resumed."
            set_condition(status, "Suspended", "PyTorchJobResumed", message, "False")
            status["startTime"] = timestamp()
            self._events.normal(job, "PyTorchJobResumed", message)
        if self._past_deadline(job, status):
            message = f"Job {name} has failed because it was active longer than specified deadline"
            self._events.normal(job, "PyTorchJobFailed", message)
            self._delete_pods(job, pods)
            self._finish(status, "Failed", message)
            self._write(job, status)
            return None
        status.setdefault("startTime", timestamp())
        counts = {kind: self._reconcile_pods(job, kind, pods) for kind in parts.replicas_of(job)}
        for kind in counts:
            self._reconcile_services(job, kind, services)
        self._judge(job, status, counts)
        self._write(job, status)
        return None

    def _reconcile_pods(self, job, kind, pods):
        """Create the pods that are missing, and count the others."""
        counts = {"active": 0, "succeeded": 0, "failed": 0}
        for index in range(parts.replicas_of(job)[kind]):
            name = parts.pod_name(job, kind, index)
            pod = pods.get(name)
            if pod is None and (job["metadata"]["uid"], name) in self._ran:
                # With restartPolicy Never a pod that ran and is gone is one that failed.
                counts["failed"] += 1
            elif pod is None:
                self._create(job, PODS, parts.pod_of(job, kind, index), "Pod")
            else:
                self._count(job, pod, counts)
        return counts

    def _count(self, job, pod, counts):
        phase, name = pod["status"]["phase"], pod["metadata"]["name"]
        if phase in ("Pending", "Running"):
            self._report_problem(job, pod)
        if (code := _exit_code(pod)) is not None:
            self._events.normal(
                job, "ExitedWithCode", f"Pod: {pod['metadata']['namespace']}.{name} exited with code {code}"
            )
        if phase == "Running":
            self._ran.add((job["metadata"]["uid"], name))
            counts["failed" if is_deleted(pod) else "active"] += 1
        elif phase in ("Succeeded", "Failed"):
            counts[phase.lower()] += 1

    def _report_problem(self, job, pod):
        name = pod["metadata"]["name"]
        for condition in pod["status"].get("conditions", []):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                message = f"Error pod {name} condition message: {condition['message']}"
                self._events.warning(job, condition["reason"], message)
        for container in pod["status"].get("containerStatuses", []):
            waiting, ended = container["state"].get("waiting", {}), container["state"].get("terminated")
            where = f"Error pod {name} container {container['name']}"
            if waiting.get("message"):
                self._events.warning(job, waiting["reason"], f"{where} waiting message: {waiting['message']}")
            if ended and ended["exitCode"] != 0:
                message = f"{where} exitCode: {ended['exitCode']} terminated message: {ended.get('message', '')}"
                self._events.warning(job, ended["reason"], message)

    def _reconcile_services(self, job, kind, services):
        for index in range(parts.replicas_of(job)[kind]):
            if parts.pod_name(job, kind, index) not in services:
                self._create(job, SERVICES, parts.service_of(job, kind, index), "Service")

    def _create(self, job, resource, item, kind):
        name = item["metadata"]["name"]
        try:
            if causes := metadata_violations(item):
                raise invalid(kind, "", name, causes)
            if resource is PODS:
                default_pod(item)
                check_pod(item, self._store)
            else:
                check_service(item)
                default_service(item)
            self._store.create(resource, item)
        except ApiError as error:
            if error.status != 501:
                self._events.warning(job, f"FailedCreate{kind}", f"Error creating: {error}")
            raise
        self._events.normal(job, f"SuccessfulCreate{kind}", f"Created {kind.lower()}: {name}")

    def _judge(self, job, status, counts):
        """Set the numbers, and the conditions that follow from them."""
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        status["replicaStatuses"] = {kind: _without_zeros(each) for kind, each in counts.items()}
        replicas = parts.replicas_of(job)
        for kind, each in counts.items():
            selector = ",".join(f"{key}={value}" for key, value in sorted(parts.selector(job, kind).items()))
            status["replicaStatuses"][kind]["selector"] = selector
            leads = kind == "Master" or "Master" not in replicas
            texts = _texts(name, f"{namespace}/{name}", "Master" in replicas)
            needed = 1 if "elasticPolicy" in job["spec"] and kind == "Worker" else replicas[kind]
            if leads and each["succeeded"] >= needed:
                self._finish(status, "Succeeded", texts["Succeeded"])
                self._events.normal(job, "PyTorchJobSucceeded", texts["Succeeded"])
                return
            if leads and each["active"] > 0:
                set_condition(status, "Running", "PyTorchJobRunning", texts["Running"])
            if each["failed"] > 0:
                message = f"PyTorchJob {name} is failed because {each['failed']} {kind} replica(s) failed."
                self._events.normal(job, "PyTorchJobFailed", message)
                self._finish(status, "Failed", message)

    def _finish(self, status, kind, message):
        status.setdefault("completionTime", timestamp())
        set_condition(status, kind, f"PyTorchJob{kind}", message)

    def _clean_up(self, job, status, pods):
        """What is left to do for a job that has ended."""
        self._delete_pods(job, pods)
        if is_true(status, "Succeeded"):
            for each in status["replicaStatuses"].values():
                if active := each.pop("active", 0):
                    each["succeeded"] = each.get("succeeded", 0) + active
        self._write(job, status)
        lifetime = job["spec"].get("runPolicy", {}).get("ttlSecondsAfterFinished")
        if lifetime is None:
            return None
        left = lifetime - _age(status["completionTime"])
        if left > 0:
            return left
        self._store.delete(PYTORCHJOBS, job["metadata"]["namespace"], job["metadata"]["name"])
        return None

    def _delete_pods(self, job, pods):
        """Delete pods by the job's cleanPodPolicy, and the services that are named like them."""
        policy = job["spec"].get("runPolicy", {}).get("cleanPodPolicy", "None")
        for pod in pods.values():
            if policy == "All" or (policy == "Running" and pod["status"]["phase"] in ("Pending", "Running")):
                self._delete(job, PODS, pod["metadata"]["name"], "Pod")
                self._delete(job, SERVICES, pod["metadata"]["name"], "Service")

    def _suspend(self, job, status, pods):
        message = f"PyTorchJob {job['metadata']['name']} is suspended."
        for pod in pods.values():
            self._ran.discard((job["metadata"]["uid"], pod["metadata"]["name"]))
            self._delete(job, PODS, pod["metadata"]["name"], "Pod")
            self._delete(job, SERVICES, pod["metadata"]["name"], "Service")
        if is_true(status, "Running"):
            set_condition(status, "Running", "PyTorchJobSuspended", message, "False")
        for each in status.get("replicaStatuses", {}).values():
            each.pop("active", None)
        set_condition(status, "Suspended", "PyTorchJobSuspended", message)
        self._events.normal(job, "PyTorchJobSuspended", message)
        self._write(job, status)

    def _delete(self, job, resource, name, kind):
        item = self._store.find(resource, job["metadata"]["namespace"], name)
        if item is None or is_deleted(item):
            return
        self._store.delete(resource, job["metadata"]["namespace"], name)
        self._events.normal(job, f"SuccessfulDelete{kind}", f"Deleted {kind.lower()}: {name}")

    def _past_deadline(self, job, status):
        limit = job["spec"].get("runPolicy", {}).get("activeDeadlineSeconds")
        return limit is not None and "startTime" in status and _age(status["startTime"]) >= limit

    def _write(self, job, status):
        metadata = job["metadata"]

        def change(stored):
            if stored["metadata"]["uid"] == metadata["uid"]:
                stored["status"] = status

        self._store.update(PYTORCHJOBS, metadata["namespace"], metadata["name"], change)


def _texts(name, full_name, has_master):
    """The two controllers' words are not the same."""
    if has_master:
        return {
            "Running": f"PyTorchJob {name} is running.",
            "Succeeded": f"PyTorchJob {name} is successfully completed.",
        }
    return {
        "Running": f"PyTorchJob {full_name} is running.",
        "Succeeded": f"PyTorchJob {full_name} successfully completed.",
    }


def _exit_code(pod):
    for container in pod["status"].get("containerStatuses", []):
        if container["name"] == "pytorch" and "terminated" in container["state"]:
            return container["state"]["terminated"]["exitCode"]
    return None


def _without_zeros(counts):
    return {name: number for name, number in counts.items() if number}


def _age(moment):
    since = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    return (datetime.now(UTC) - since).total_seconds()
