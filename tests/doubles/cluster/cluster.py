"""The cluster as tests use it."""

import base64
import json
import secrets
import threading
import time
from pathlib import Path

from tests.doubles.cluster import nodes, processes
from tests.doubles.cluster.api_server import Accident, ApiServer
from tests.doubles.cluster.bare_pod import LoggedPod
from tests.doubles.cluster.defaults import check_pod, default_pod
from tests.doubles.cluster.errors import ApiError
from tests.doubles.cluster.garbage import GarbageCollector
from tests.doubles.cluster.kubelet import Kubelet
from tests.doubles.cluster.lags import Lags
from tests.doubles.cluster.objects import Store
from tests.doubles.cluster.resources import (
    CLAIMS,
    CLUSTER_RUNTIMES,
    CONFIG_MAPS,
    DEFINITIONS,
    EVENTS,
    INSTALLABLE,
    NAMESPACES,
    NODES,
    PODS,
    PYTORCHJOBS,
    QUEUES,
    SECRETS,
    SERVICES,
    TRAINJOBS,
)
from tests.doubles.cluster.scheduler import Scheduler
from tests.doubles.cluster.trainer import TrainerOperator
from tests.doubles.cluster.trainer_pods import runtime
from tests.doubles.cluster.training_operator import TrainingOperator

JOBS = {"pytorchjobs": PYTORCHJOBS, "trainjobs": TRAINJOBS}


class FakeCluster:
    """A cluster of one namespace; leaving its context ends all of its processes.

    It needs Linux. Pods see each other on this machine's loopback. As in a container, SIGTERM reaches the main
    process only, and only if it handles it; a shell that does not waits for its grace period to be over. Whoever
    waits for a pod's program to be ready has to look at its log: "Running" comes before that.

    Args:
        folder: Gets the kubeconfig, and a folder for each pod.
        operator: Whether the training operator runs.
        lags: How long things take.
    """

    def __init__(self, folder, namespace="demo", operator=True, lags=None, port=0):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.namespace = namespace
        self.token = secrets.token_urlsafe(24)
        self.lags = lags or Lags()
        self.store = Store()
        self._closed = threading.Event()
        self._losses = []
        mark = secrets.token_hex(8)
        self._mark = mark
        self._guard = processes.guard(mark)
        self.store.create(NAMESPACES, {**_named("v1", "Namespace", namespace), "status": {"phase": "Active"}})
        self.kubelet = Kubelet(self.store, self.folder / "pods", self.lags, mark)
        self.server = ApiServer(self.store, self.token, namespace, self.kubelet.log_of, port)
        self._operators = []
        self._controllers = [
            Scheduler(self.store, self.lags.schedule),
            GarbageCollector(self.store, self.lags.collect),
        ]
        self.install("kubeflow.org")
        self.add_node("node0")
        if operator:
            self.start_operator()
        self.url = f"http://127.0.0.1:{self.server.http.port}"
        self.kubeconfig = self._write_kubeconfig()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        if self._closed.is_set():
            return
        self._closed.set()
        self.stop_operator()
        for controller in self._controllers:
            controller.stop()
        for loss in self._losses:
            loss.join()
        self.kubelet.stop()
        self.server.http.close()
        processes.kill_marked(processes.CLUSTER, self._mark)
        self._guard.stdin.close()
        self._guard.wait()

    # What there is

    def add_node(self, name, gpus=0, labels=None, taints=None):
        self.store.create(NODES, nodes.node(name, gpus, labels, taints))

    def kill_node(self, name):
        """The node's machine dies: its pods stay "Running" until somebody deletes them by force."""
        self.kubelet.lose(name)
        self._losses.append(nodes.NodeLoss(self.store, name, self.lags, self._closed))

    def remove_node(self, name):
        """The node is taken out of the cluster, and its pods with it."""
        self.store.remove(NODES, None, name)
        for pod in self.pods():
            if pod["spec"].get("nodeName") == name:
                self.delete_pod(pod["metadata"]["name"], grace=0)

    def add_secret(self, name, data):
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        self._create(SECRETS, {**self._named("v1", "Secret", name), "data": encoded, "type": "Opaque"})

    def add_config_map(self, name, data):
        self._create(CONFIG_MAPS, {**self._named("v1", "ConfigMap", name), "data": data})

    def add_claim(self, name, modes=("ReadWriteMany",), phase="Bound"):
        """A claim. Nothing is mounted: processes see this machine's folders, whatever the `mountPath`."""
        spec = {"accessModes": list(modes), "resources": {"requests": {"storage": "1Gi"}}}
        claim = {**self._named("v1", "PersistentVolumeClaim", name), "spec": spec, "status": {"phase": phase}}
        self._create(CLAIMS, claim)

    def add_queue(self, name):
        """A queue of Kueue: jobs with its label wait until `admit`."""
        self.install(QUEUES.group)
        queue = {**self._named(QUEUES.api_version, "LocalQueue", name), "spec": {"clusterQueue": "cluster-queue"}}
        self._create(QUEUES, queue)

    def add_quota(self, gpus):
        self.store.gpu_quota = gpus

    @property
    def images(self):
        """The images that can be pulled; `None`: all."""
        return self.kubelet.images

    @images.setter
    def images(self, images):
        self.kubelet.images = images

    def install(self, group):
        """Install the kinds of a group; with Trainer's comes its runtime `torch-distributed`."""
        if group == TRAINJOBS.group and self.store.find(CLUSTER_RUNTIMES, None, "torch-distributed") is None:
            self.add_runtime("torch-distributed")
        for resource in INSTALLABLE:
            if resource.group == group:
                self.server.installed.add(group)
                if self.store.find(DEFINITIONS, None, resource.full_name) is None:
                    self.store.create(DEFINITIONS, _definition(resource))

    def uninstall(self, group):
        self.server.installed.discard(group)
        for resource in INSTALLABLE:
            if resource.group == group and self.store.find(DEFINITIONS, None, resource.full_name):
                self.store.remove(DEFINITIONS, None, resource.full_name)

    def add_runtime(self, name):
        """One more runtime of Trainer."""
        self.store.create(CLUSTER_RUNTIMES, runtime(name))

    def start_operator(self):
        """Start the training operator, and Trainer, which looks after the other kind of jobs."""
        if not self._operators:
            self._operators = [TrainingOperator(self.store), TrainerOperator(self.store)]
            self.server.operator_runs = True

    def stop_operator(self):
        """The operators are away, and with them the webhooks that every write of a job needs."""
        self.server.operator_runs = False
        for operator in self._operators:
            operator.stop()
        self._operators = []

    # What goes wrong

    def deny(self, verb, resource):
        """Take a right from the token; the resource may carry a subresource, and either may be `*`."""
        self.server.access.deny(verb, resource)

    def allow_only(self, *rules):
        """Leave only these pairs of verb and resource."""
        self.server.access.allow_only(*rules)

    def allow_all(self):
        self.server.access.allow_all()

    def fail(self, status=500, times=1, method=None, path=None, body=None, headers=None, after=False):
        """Give another answer than the right one.

        Args:
            status: 0 ends the connection without an answer.
            path: A regular expression; it is searched in the path with its query.
            body: A Status of this code, if not given.
            after: The request is carried out, and only its answer is lost.
        """
        self.server.plan(Accident(status, times, method, path, body, headers or {}, after))

    def cut_logs(self, after_bytes=None):
        """End the log streams that are open now, as a broken network does.

        Args:
            after_bytes: Instead, end the next stream that has sent so many bytes, in the middle of a line too.
        """
        if after_bytes is None:
            return self.server.http.cut("log")
        self.server.http.log_cut = after_bytes
        return 0

    def cut_streams(self):
        """End all open watches and log streams; returns how many."""
        return self.server.http.cut()

    def compact(self):
        """Make all versions so far too old to be watched from."""
        self.store.compact()

    def evict(self, pod, message="The node was low on resource: memory. "):
        self._worker(pod).evict(message)

    def oom_kill(self, pod):
        self._worker(pod).kill("OOMKilled")

    def delete_pod(self, pod, grace=None):
        self.store.delete(PODS, self.namespace, _name(pod), grace=grace)

    def admit(self, job):
        """Kueue has room for the job."""
        resource, name = self._resource(_name(job)), _name(job)

        def resume(item):
            policy = item["spec"] if resource is TRAINJOBS else item["spec"]["runPolicy"]
            policy["suspend"] = False

        self.store.update(resource, self.namespace, name, resume)

    # What can be seen

    @property
    def requests(self):
        return list(self.server.requests)

    def job(self, name):
        """A job as the API shows it, or `None`."""
        return next((job for job in self.jobs() if job["metadata"]["name"] == name), None)

    def jobs(self):
        return [job for resource in JOBS.values() for job in self.store.list(resource, self.namespace)]

    def pods(self, job=None):
        pods = self.store.list(PODS, self.namespace)
        if job is None:
            return pods
        return [pod for pod in pods if job in (pod["metadata"].get("labels") or {}).values()]

    def services(self):
        return self.store.list(SERVICES, self.namespace)

    def events(self, about=None):
        events = self.store.list(EVENTS, self.namespace)
        return [event for event in events if about in (None, event["involvedObject"]["name"])]

    def pod_log(self, pod):
        """The whole log of a pod."""
        return self.kubelet.log_of(self.store.get(PODS, self.namespace, _name(pod))).text()

    def run_pod(self, name, argv=None, lines=None, labels=None, **spec):
        """A pod without a job.

        Args:
            argv: The command; without it the pod has no process, and its log is what the test appends.
            lines: The first lines of that log.
            spec: More fields of the pod's spec, such as `terminationGracePeriodSeconds`.
        """
        container = {"name": "pytorch", "image": "registry.local/image:1", "command": argv or ["true"]}
        pod = self._named("v1", "Pod", name)
        pod["metadata"]["labels"] = labels or {}
        pod["spec"] = {"restartPolicy": "Never", "containers": [container], **spec}
        default_pod(pod)
        check_pod(pod, self.store)
        if argv is not None:
            self._create(PODS, pod)
            return None
        with self.store.changed:
            self._create(PODS, pod)
            logged = LoggedPod(self.store, self.kubelet, name, self.namespace)
        for line in lines or []:
            logged.log(line)
        return logged

    def wait(self, predicate, timeout=10.0):
        """Wait until something is true of the cluster, and return what the predicate returned."""
        end = time.monotonic() + timeout
        while not (result := predicate()):
            if time.monotonic() > end:
                raise TimeoutError(f"not true within {timeout} s; jobs: {self._summary()}")
            with self.store.changed:
                self.store.changed.wait(0.05)
        return result

    def _summary(self):
        statuses = {job["metadata"]["name"]: job.get("status") for job in self.jobs()}
        pods = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in self.pods()}
        return json.dumps({"jobs": statuses, "pods": pods})

    def _worker(self, pod):
        return self.kubelet.worker(self.store.get(PODS, self.namespace, _name(pod)))

    def _resource(self, job):
        for resource in JOBS.values():
            if self.store.find(resource, self.namespace, job):
                return resource
        raise ApiError(404, f"no job is named {job}")

    def _create(self, resource, item):
        self.store.create(resource, item)

    def _named(self, version, kind, name):
        named = _named(version, kind, name)
        named["metadata"]["namespace"] = self.namespace
        return named

    def _write_kubeconfig(self):
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "launcher", "user": {"token": self.token}}],
            "contexts": [
                {"name": "fake", "context": {"cluster": "fake", "user": "launcher", "namespace": self.namespace}}
            ],
            "current-context": "fake",
        }
        path = self.folder / "kubeconfig"
        path.write_text(json.dumps(config, indent=1))
        return path


def _name(item):
    """The name of what a test names, or holds as the API shows it."""
    return item if isinstance(item, str) else item["metadata"]["name"]


def _named(version, kind, name):
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}}


def _definition(resource):
    names = {"plural": resource.plural, "kind": resource.kind}
    spec = {
        "group": resource.group,
        "names": names,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "versions": [{"name": resource.version, "served": True, "storage": True}],
    }
    named = _named("apiextensions.k8s.io/v1", "CustomResourceDefinition", resource.full_name)
    return {**named, "spec": spec}
