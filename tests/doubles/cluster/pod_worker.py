"""A kubelet's work for one pod: start it, follow its container, report how it ended."""

import re
import threading
import time

from tests.doubles.cluster import pod_status
from tests.doubles.cluster.container import StartError, expand
from tests.doubles.cluster.environment import ConfigError, environment_of, missing_volume
from tests.doubles.cluster.errors import ApiError
from tests.doubles.cluster.logs import ContainerLog
from tests.doubles.cluster.objects import is_deleted
from tests.doubles.cluster.recorder import Recorder
from tests.doubles.cluster.resources import PODS, SERVICES

IMAGE = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?")
RUNTIME = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: "
)


class Stopped(Exception):
    """The pod is not wanted any more, or its node is lost."""


class PodWorker:
    def __init__(self, kubelet, pod, address):
        self.pod = pod
        self.log = ContainerLog()
        self.container = None
        self._kubelet = kubelet
        self._store = kubelet.store
        self._lags = kubelet.lags
        self._address = address
        self._end = None
        self._lost = False
        self._changed = threading.Condition()
        self._events = Recorder(self._store, "kubelet", pod["spec"]["nodeName"])
        self._path = f"spec.containers{{{pod['spec']['containers'][0]['name']}}}"
        self._thread = threading.Thread(target=self._run, name=pod["metadata"]["name"], daemon=True)
        self._thread.start()

    def stop(self, grace):
        """The pod is being deleted."""
        with self._changed:
            self._end = self._end or "deleted"
            if self.container:
                self.container.stop(grace)
            self._changed.notify_all()

    def kill(self, reason=None):
        """End the container at once: the pod is gone, or its memory is at its limit (`OOMKilled`)."""
        with self._changed:
            self._end = reason or "gone"
            if self.container:
                self.container.kill()
            self._changed.notify_all()

    def evict(self, message):
        with self._changed:
            self._events.warning(self.pod, "Evicted", message)
            self._end = ("evicted", message)
            self.container.stop(self.pod["spec"]["terminationGracePeriodSeconds"])

    def lose(self):
        """The node is dead: what ran there ends, and nobody reports it."""
        self._lost = True
        self.kill()

    def join(self):
        self._thread.join()

    def _run(self):
        try:
            command, environment = self._prepare()
            self._execute(command, environment)
        except Stopped:
            pass
        if not self._lost:
            self.log.end()
            self._remove_if_deleted()

    def _prepare(self):
        """Everything before the container's process: refusals are reported and tried again."""
        self._pause(self._lags.create)
        self._update(lambda pod: pod_status.creating(pod, "10.0.0.1"))
        while message := missing_volume(self.pod, self._store):
            self._events.warning(self.pod, "FailedMount", message)
            self._pause(self._lags.retry)
        self._pause(self._lags.create)
        self._update(pod_status.ready_to_start)
        for container in self.pod["spec"].get("initContainers", []):
            self._initialize(container)
        container = self.pod["spec"]["containers"][0]
        self._pull(container)
        while True:
            try:
                environment = environment_of(self.pod, container, self._store, self._address)
                break
            except ConfigError as error:
                self._refuse("CreateContainerConfigError", str(error), f"Error: {error}")
        words = [*container.get("command", []), *container.get("args", [])]
        return [expand(word, environment) for word in words], environment

    def _initialize(self, container):
        """Run an init container; the operator's own waits for the name of the master."""
        master = re.search(r"nslookup (\S+);", " ".join(container.get("command", [])))
        self._update(lambda pod: pod_status.initializing(pod, self._address))
        self._pause(self._lags.start)
        if master is None:
            environment = environment_of(self.pod, container, self._store, self._address)
            command = [expand(word, environment) for word in container["command"]]
            if code := self._kubelet.start(self.pod, container, command, environment, ContainerLog()).run():
                self._update(lambda pod: pod_status.not_initialized(pod, code))
                raise Stopped
        while master and self._store.find(SERVICES, self.pod["metadata"]["namespace"], master[1]) is None:
            self._pause(self._lags.retry)
        self._update(pod_status.initialized)

    def _pull(self, container):
        image, policy = container["image"], container["imagePullPolicy"]
        if not IMAGE.fullmatch(image):
            name = next((part for part in image.split("/")[1:] if part != part.lower()), image).split(":")[0]
            text = (
                f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": '
                f"invalid reference format: repository name ({name}) must be lowercase"
            )
            while True:
                self._events.warning(self.pod, "InspectFailed", text, self._path)
                self._refuse("InvalidImageName", text, "Error: InvalidImageName")
        while not self._kubelet.has_image(image):
            if policy == "Never":
                text = f'Container image "{image}" is not present with pull policy of Never'
                self._events.warning(self.pod, "ErrImageNeverPull", text, self._path)
                self._refuse("ErrImageNeverPull", text, "Error: ErrImageNeverPull")
            else:
                self._fail_to_pull(image)
        present = f'Container image "{image}" already present on machine and can be accessed by the pod'
        self._events.normal(self.pod, "Pulled", present, self._path)

    def _fail_to_pull(self, image):
        self._events.normal(self.pod, "Pulling", f'Pulling image "{image}"', self._path)
        self._pause(self._lags.pull)
        text = (
            f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": {image}: not found'
        )
        self._events.warning(self.pod, "Failed", f'Failed to pull image "{image}": {text}', self._path)
        self._refuse("ErrImagePull", text, "Error: ErrImagePull")
        back_off = f'Back-off pulling image "{image}"'
        self._events.normal(self.pod, "BackOff", back_off, self._path)
        self._update(lambda pod: pod_status.waiting(pod, "ImagePullBackOff", f"{back_off}: ErrImagePull: {text}"))
        self._pause(self._lags.retry)

    def _refuse(self, reason, message, event):
        self._events.warning(self.pod, "Failed", event, self._path)
        self._update(lambda pod: pod_status.waiting(pod, reason, message))
        self._pause(self._lags.retry)

    def _execute(self, command, environment):
        container = self.pod["spec"]["containers"][0]
        self._events.normal(self.pod, "Created", "Container created", self._path)
        self._pause(self._lags.start)
        try:
            if not command:
                raise StartError("no command specified")
            with self._changed:
                if self._end:
                    raise Stopped
                self.container = self._kubelet.start(self.pod, container, command, environment, self.log)
        except StartError as error:
            message = RUNTIME + str(error)
            self._events.warning(self.pod, "Failed", f"Error: {message}", self._path)
            self._update(lambda pod: pod_status.terminated(pod, 128, "StartError", message))
            self._pause(self._lags.phase)
            self._update(pod_status.finished)
            return
        self._events.normal(self.pod, "Started", "Container started", self._path)
        self._update(lambda pod: pod_status.running(pod, self._address))
        self._report(self.container.run())

    def _report(self, code):
        if self._lost:
            return
        reason = "OOMKilled" if self._end == "OOMKilled" else "Completed" if code == 0 else "Error"
        if self._end in (None, "OOMKilled"):
            self._update(lambda pod: pod_status.terminated(pod, code, reason))
            threading.Timer(self._lags.log_end, self.log.end).start()
            with self._changed:
                self._changed.wait_for(lambda: self._end not in (None, "OOMKilled"), self._lags.phase)
            self._update(pod_status.finished)
            return

        def finish(pod):
            pod_status.terminated(pod, code, reason)
            pod_status.finished(pod)
            if self._end[0] == "evicted":
                pod_status.evicted(pod, self._end[1])

        self._update(finish)

    def _remove_if_deleted(self):
        """A deleted pod goes once its container has ended; one that has ended may be deleted later."""
        time.sleep(self._lags.remove if self._end == "deleted" else 0)
        metadata = self.pod["metadata"]
        with self._store.changed:
            pod = self._store.find(PODS, metadata["namespace"], metadata["name"])
            if pod and pod["metadata"]["uid"] == metadata["uid"] and is_deleted(pod):
                self._store.delete(PODS, metadata["namespace"], metadata["name"], grace=0)

    def _update(self, change):
        metadata = self.pod["metadata"]
        if self._lost:
            raise Stopped
        with self._store.changed:
            pod = self._store.find(PODS, metadata["namespace"], metadata["name"])
            if pod is None or pod["metadata"]["uid"] != metadata["uid"]:
                return
            try:
                self.pod = self._store.update(PODS, metadata["namespace"], metadata["name"], change)
            except ApiError as error:
                raise Stopped from error

    def _pause(self, seconds):
        """Wait before the container runs; a pod that is deleted meanwhile never starts."""
        with self._changed:
            if self._changed.wait_for(lambda: self._end, seconds):
                raise Stopped
