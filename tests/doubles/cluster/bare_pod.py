"""Pods that a test makes by hand."""

from tests.doubles.cluster import pod_status
from tests.doubles.cluster.resources import PODS


class LoggedPod:
    """A pod without a process: the test writes its log, and says when it ends."""

    def __init__(self, store, kubelet, name, namespace):
        self._store = store
        self._log = kubelet.adopt(store.get(PODS, namespace, name))
        self.name = name
        self._key = PODS, namespace, name

    def log(self, line, at=None):
        """Append a line; a newline is added where there is none.

        Args:
            at: The line's time in nanoseconds, in place of now.
        """
        data = line if isinstance(line, bytes) else line.encode()
        self._log.append(data if data.endswith(b"\n") else data + b"\n", at)

    def end(self, code=0):
        """End the container, and with it the streams that follow its log."""
        reason = "Completed" if code == 0 else "Error"
        self._store.update(*self._key, lambda pod: pod_status.terminated(pod, code, reason))
        self._log.end()
        self._store.update(*self._key, pod_status.finished)
