"""Keeps the newest state of a job's pods, those that are gone already included."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

from components.cluster.client import REFUSED_S, Cluster
from components.cluster.errors import ClusterRefused, ClusterUnavailable, api_errors
from components.cluster.jobs import list_pods
from components.cluster.kinds import JobKind
from components.cluster.streams import Stream, lines

_WATCH_S = 240
"""Asked of the server for one watch; a connection that is dead without a word is noticed after it."""

_AGAIN_S = 0.1
"""Before the next watch: some proxies end every one at once."""

_PAUSE_S = 1.0
"""Before the next try, where the last one failed."""


class PodWatch:
    """Watches a job's pods in the background.

    A watch, because the operator removes pods right after their end, and with them their exit codes; a look every
    few seconds would miss that.

    Args:
        cluster: Where.
        kind: Of the job.
        job: Its name.
    """

    def __init__(self, cluster: Cluster, kind: JobKind, job: str) -> None:
        self._cluster = cluster
        self._kind = kind
        self._job = job
        self._lock = threading.Lock()
        self._pods: dict[str, dict[str, Any]] = {}
        self._present: set[str] = set()
        self._version: str | None = None
        self._stream = Stream()
        self._refused_since: float | None = None
        self._refusal: ClusterRefused | None = None
        self._thread = threading.Thread(target=self._run, name="pod-watch", daemon=True)

    def start(self) -> None:
        """Begin, after a first list, so that what is there now is known at once."""
        self._version = self._list(60, REFUSED_S)
        self._thread.start()

    def refresh(self) -> None:
        """List the pods, if that is possible now: a watch on a dead connection is silent for minutes."""
        with contextlib.suppress(ClusterRefused, ClusterUnavailable):
            self._list()

    def stop(self) -> None:
        """End."""
        self._stream.end()
        if self._thread.is_alive():
            self._thread.join(_PAUSE_S)

    def pods(self) -> list[dict[str, Any]]:
        """The newest state of every pod that was ever seen, sorted by name.

        Raises:
            ClusterRefused: The right to look has been lost.
        """
        if self._refusal is not None:
            raise self._refusal
        with self._lock:
            return [self._pods[name] for name in sorted(self._pods)]

    def present(self) -> list[dict[str, Any]]:
        """Those that are still there."""
        return [pod for pod in self.pods() if pod["metadata"]["name"] in self._present]

    def _run(self) -> None:
        while not self._stream.ended.is_set():
            pause = _PAUSE_S
            try:
                if self._version is None:
                    self._version = self._list()
                self._watch()
                pause = _AGAIN_S
            except ClusterUnavailable as error:
                pause = max(pause, error.retry_after_s or 0)
            except ClusterRefused as error:
                self._version = None
                if self._has_lasted(error):
                    self._refusal = error
                    return
            self._stream.ended.wait(pause)

    def _list(self, patience_s: float = 0.0, refused_s: float = 0.0) -> str:
        pods, version = list_pods(self._cluster, self._kind, self._job, patience_s, refused_s)
        with self._lock:
            for pod in pods:
                self._pods[pod["metadata"]["name"]] = pod
            self._present = {pod["metadata"]["name"] for pod in pods}
        return version

    def _watch(self) -> None:
        """Follow changes until the watch ends, however it does."""
        with api_errors(f"watch the pods of '{self._job}'"):
            response = self._cluster.core.list_namespaced_pod(
                self._cluster.namespace,
                label_selector=f"{self._kind.pod_label}={self._job}",
                resource_version=self._version,
                watch=True,
                allow_watch_bookmarks=True,
                timeout_seconds=_WATCH_S,
                _preload_content=False,
                _request_timeout=(5, _WATCH_S + 30),
            )
            self._refused_since = None
            for change in _changes(self._stream.chunks(response)):
                if change["type"] == "ERROR":  # most often 410: the version is too old
                    self._version = None
                    return
                self._take(change["type"], change["object"])
                # After each: a watch that is cut goes on from here, and not from its beginning.
                self._version = change["object"]["metadata"]["resourceVersion"]

    def _take(self, change: str, pod: dict[str, Any]) -> None:
        if change == "BOOKMARK":
            return
        name = pod["metadata"]["name"]
        with self._lock:
            self._pods[name] = pod
            if change == "DELETED":
                self._present.discard(name)
            else:
                self._present.add(name)

    def _has_lasted(self, error: ClusterRefused) -> bool:
        if error.status in (404, 410):
            return False
        if self._refused_since is None:
            self._refused_since = time.monotonic()
        return time.monotonic() - self._refused_since >= REFUSED_S


def _changes(chunks: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    # A line that is cut tells nothing; what it would have told comes again.
    with contextlib.suppress(ValueError):
        for line in lines(chunks):
            yield json.loads(line)
