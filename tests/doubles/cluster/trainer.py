"""Trainer's controller of TrainJobs, with what JobSet and the Job controller do for it."""

import copy
import time

from tests.doubles.cluster import trainer_pods as parts
from tests.doubles.cluster.controller import Controller
from tests.doubles.cluster.defaults import check_pod, default_pod, default_service
from tests.doubles.cluster.errors import ApiError
from tests.doubles.cluster.objects import is_deleted, timestamp
from tests.doubles.cluster.recorder import Recorder
from tests.doubles.cluster.resources import CLUSTER_RUNTIMES, PODS, SERVICES, TRAINJOBS

RETRY = 0.2
ENDED = "Complete", "Failed"


class TrainerOperator:
    def __init__(self, store):
        self._store = store
        self._events = Recorder(store, "job-controller")
        self._retries = {}
        self._known = {}
        self._controller = Controller(store, "trainer", self._step)

    def stop(self):
        self._controller.stop()

    def _step(self):
        waits = []
        for job in self._store.list(TRAINJOBS):
            again = self._retries.get(job["metadata"]["uid"], 0) - time.monotonic()
            if again > 0:
                waits.append(again)
                continue
            try:
                self._reconcile(job)
            except ApiError as error:
                if error.status == 501:
                    raise
                self._retries[job["metadata"]["uid"]] = time.monotonic() + RETRY
                waits.append(RETRY)
        return min(waits) if waits else None

    def _reconcile(self, job):
        status = copy.deepcopy(job.get("status") or {})
        if is_deleted(job) or any(_is_true(status, kind) for kind in ENDED):
            return
        pods = self._pods(job)
        if job["spec"]["suspend"]:
            for pod in pods:
                self._delete(pod)
            self._known.pop(job["metadata"]["uid"], None)
            _set_condition(status, "Suspended", "Suspended", "TrainJob is suspended")
            status["jobsStatus"] = [_jobs_status(suspended=1)]
        else:
            if _is_true(status, "Suspended"):
                _set_condition(status, "Suspended", "Resumed", "TrainJob is resumed", "False")
            self._run(job, status, pods)
        self._write(job, status)

    def _run(self, job, status, pods):
        """Create what is missing, and see how far it is."""
        runtime = self._store.get(CLUSTER_RUNTIMES, None, job["spec"]["runtimeRef"]["name"])
        number = parts.number_of_nodes(job, runtime)
        uid, name = job["metadata"]["uid"], job["metadata"]["name"]
        if self._store.find(SERVICES, job["metadata"]["namespace"], name) is None:
            service = parts.service_of(job)
            default_service(service)
            self._store.create(SERVICES, service)
        by_index = {int(pod["metadata"]["labels"][parts.INDEX]): pod for pod in pods}
        known = self._known.setdefault(uid, set())
        lost = {index for index in known if index not in by_index or _failed(by_index[index])}
        if lost:
            for pod in pods:
                if pod["status"]["phase"] in ("Pending", "Running"):
                    self._delete(pod)
            message = f"jobset failed due to one or more job failures (first failed job: {name}-node-0)"
            _set_condition(status, "Failed", "FailedJobs", message)
            status["jobsStatus"] = [_jobs_status(failed=1)]
            return
        for index in sorted(set(range(number)) - known):
            self._create(job, parts.pod_of(job, runtime, index))
            known.add(index)
        phases = [pod["status"]["phase"] for pod in self._pods(job)]
        if phases.count("Succeeded") == number:
            _set_condition(status, "Complete", "AllJobsCompleted", "jobset completed successfully")
            status["jobsStatus"] = [_jobs_status(succeeded=1)]
            return
        ready = phases.count("Running") + phases.count("Succeeded") >= number
        status["jobsStatus"] = [_jobs_status(active=1, ready=int(ready))]

    def _pods(self, job):
        uid = job["metadata"]["uid"]
        return [
            pod
            for pod in self._store.list(PODS, job["metadata"]["namespace"])
            if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences") or [])
        ]

    def _create(self, job, pod):
        default_pod(pod)
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {**job["metadata"], "name": f"{job['metadata']['name']}-node-0"},
        }
        try:
            check_pod(pod, self._store)
            self._store.create(PODS, pod)
        except ApiError as error:
            self._events.warning(owner, "FailedCreate", f"Error creating: {error}")
            raise
        self._events.normal(owner, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")

    def _delete(self, pod):
        if not is_deleted(pod):
            self._store.delete(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _write(self, job, status):
        metadata = job["metadata"]

        def change(stored):
            if stored["metadata"]["uid"] == metadata["uid"]:
                stored["status"] = status

        self._store.update(TRAINJOBS, metadata["namespace"], metadata["name"], change)


def _failed(pod):
    return pod["status"]["phase"] == "Failed" or (is_deleted(pod) and pod["status"]["phase"] != "Succeeded")


def _jobs_status(**numbers):
    zero = dict.fromkeys(("ready", "succeeded", "failed", "active", "suspended"), 0)
    return {"name": "node", **zero, **numbers}


def _is_true(status, kind):
    return any(each["type"] == kind and each["status"] == "True" for each in status.get("conditions", []))


def _set_condition(status, kind, reason, message, value="True"):
    new = {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(),
    }
    conditions = status.setdefault("conditions", [])
    for position, each in enumerate(conditions):
        if each["type"] == kind:
            if each["status"] == value:
                new["lastTransitionTime"] = each["lastTransitionTime"]
            conditions[position] = new
            return
    conditions.append(new)
