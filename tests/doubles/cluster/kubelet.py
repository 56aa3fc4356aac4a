"""The kubelets of all nodes: every pod that has a node becomes a process of this machine."""

import itertools
import shutil

from tests.doubles.cluster import errors, pod_status, processes
from tests.doubles.cluster.container import Container, StartError
from tests.doubles.cluster.controller import Controller
from tests.doubles.cluster.environment import LocalNetwork
from tests.doubles.cluster.logs import ContainerLog
from tests.doubles.cluster.objects import is_deleted
from tests.doubles.cluster.pod_worker import PodWorker
from tests.doubles.cluster.resources import PODS

JOB_LABELS = ("training.kubeflow.org/job-name", "jobset.sigs.k8s.io/jobset-name")


class Kubelet:
    """Runs pods in folders below `folder`.

    Args:
        mark: Is in the environment of all processes, so that they end with the cluster.
    """

    def __init__(self, store, folder, lags, mark):
        self.store = store
        self.lags = lags
        self.images = None
        self._folder = folder
        self._mark = mark
        self._workers = {}
        self._addresses = itertools.count(3)
        self._network = LocalNetwork()
        self._adopted = {}
        self._lost = set()
        self._controller = Controller(store, "kubelet", self._step)

    def worker(self, pod):
        return self._workers[pod["metadata"]["uid"]]

    def log_of(self, pod):
        """The log of a pod, as long as its node answers."""
        if pod["spec"]["nodeName"] in self._lost:
            where = (
                f"{pod['metadata']['namespace']}/{pod['metadata']['name']}/{pod['spec']['containers'][0]['name']}"
            )
            url = f"https://10.0.0.1:10250/containerLogs/{where}"
            raise errors.failure(500, f'Get "{url}": net/http: TLS handshake timeout', reason="")
        return self._adopted.get(pod["metadata"]["uid"]) or self.worker(pod).log

    def adopt(self, pod):
        """Give a pod a log without a process, and call it running."""
        uid = pod["metadata"]["uid"]
        self._adopted[uid] = ContainerLog()

        def run(pod):
            pod_status.scheduled(pod, "node0")
            pod_status.creating(pod, "10.0.0.1")
            pod_status.ready_to_start(pod)
            pod_status.running(pod, "10.0.1.2")

        self.store.update(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], run)
        return self._adopted[uid]

    def has_image(self, image):
        return self.images is None or image in self.images

    def start(self, pod, container, command, environment, log):
        """Start a container's process."""
        uid = pod["metadata"]["uid"]
        labels = pod["metadata"].get("labels") or {}
        job = next((labels[key] for key in JOB_LABELS if key in labels), uid)
        owners = pod["metadata"].get("ownerReferences") or [{"uid": job}]
        local = self._network.localize(environment, owners[0]["uid"])
        folder = self._folder / uid
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.which(command[0], path=environment["PATH"]) is None:
            raise StartError(_not_there(command[0]))
        where = container.get("workingDir", folder)
        return Container(command, {**local, processes.CLUSTER: self._mark}, where, log, uid)

    def lose(self, node):
        """The node's machine dies."""
        self._lost.add(node)
        for worker in self._on(node):
            worker.lose()

    def stop(self):
        self._controller.stop()
        for worker in self._workers.values():
            worker.lose()
        for worker in self._workers.values():
            worker.join()

    def _on(self, node):
        return [worker for worker in self._workers.values() if worker.pod["spec"]["nodeName"] == node]

    def _step(self):
        pods = {pod["metadata"]["uid"]: pod for pod in self.store.list(PODS)}
        for uid, pod in pods.items():
            node = pod["spec"].get("nodeName")
            if node is None or node in self._lost:
                continue
            if uid in self._adopted:
                if is_deleted(pod):
                    self.store.delete(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], grace=0)
                continue
            if uid not in self._workers:
                self._workers[uid] = PodWorker(self, pod, f"10.0.1.{next(self._addresses)}")
            if is_deleted(pod):
                self._workers[uid].stop(pod["metadata"]["deletionGracePeriodSeconds"])
        for uid in self._workers.keys() - pods.keys():
            self._workers.pop(uid).kill()
        for uid in self._adopted.keys() - pods.keys():
            self._adopted.pop(uid).end()


def _not_there(program):
    if "/" in program:
        return f'exec: "{program}": stat {program}: no such file or directory: unknown'
    return f'exec: "{program}": executable file not found in $PATH: unknown'
