"""Follows the logs of many pods at once: every line once, in spite of streams that break."""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import urllib3

from components.cluster.client import Cluster
from components.cluster.errors import ClusterRefused, ClusterUnavailable, api_errors
from components.cluster.streams import Splitter, Stream

_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)

_SILENCE_S = 120
"""A stream without a byte for so long is opened anew: a dead connection says nothing either."""

_MISSING = 3
"""So many times in a row a log must be missing before its pod counts as gone: a node can be slow to know of it."""

_STOP_S = 1.0
"""For a thread to end whose stream has been ended."""

_LONGEST = 2**20
"""Bytes of a line that are kept: what prints without an end must not use up this process's memory."""

_OVERLAP = timedelta(seconds=1)
"""How far before the last line a stream is taken up again. The server cuts times to whole seconds, and lines of a
container's two outputs can stand in the log in another order than their times."""

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d) ")
"""A line's time: its second, and the zone of its node, which need not be UTC."""

Sink = Callable[[str, list[str]], None]
"""Takes a pod's name and its next lines."""


class LogFollower:
    """Follows containers' logs, each in a thread of its own.

    Args:
        cluster: Where.
        container: Name of the container in each pod.
        sink: Called with a pod's name and its next lines, from any thread, but for one pod in order.
        has_ended: Whether a pod's container has ended, so that its log can be complete.
    """

    def __init__(self, cluster: Cluster, container: str, sink: Sink, has_ended: Callable[[str], bool]) -> None:
        self._cluster = cluster
        self._container = container
        self._sink = sink
        self._has_ended = has_ended
        self._logs: dict[str, tuple[_PodLog, threading.Thread]] = {}
        self._uids: dict[str, str] = {}

    def follow(self, pod: str, uid: str = "") -> None:
        """Begin with a pod, whose container has started; a pod that is followed already is left as it is.

        Args:
            pod: Its name.
            uid: Tells a pod from an earlier one of its name, as of a job that was suspended.
        """
        log, before = self._logs.get(pod, (None, None))
        if before is not None and (self._uids[pod] == uid or before.is_alive()):
            return
        # The earlier pod's, because its thread may have begun to read the new one's.
        log = log or _PodLog(self._cluster, self._container, pod, self._sink, self._has_ended)
        thread = threading.Thread(target=log.run, name=f"log-{pod}", daemon=True)
        thread.start()
        self._logs[pod], self._uids[pod] = (log, thread), uid

    def finish(self, timeout_s: float) -> bool:
        """Wait for the logs of containers that have ended; whether all were read to their end in that time."""
        deadline = time.monotonic() + timeout_s
        for _, thread in self._logs.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        complete = not any(thread.is_alive() for _, thread in self._logs.values())
        for log, _ in self._logs.values():
            log.stream.end()
        for _, thread in self._logs.values():
            thread.join(_STOP_S)
        return complete


class _PodLog:
    """One container's log, from its first line to its last."""

    def __init__(
        self, cluster: Cluster, container: str, pod: str, sink: Sink, has_ended: Callable[[str], bool]
    ) -> None:
        self._cluster = cluster
        self._container = container
        self._pod = pod
        self._sink = sink
        self._has_ended = has_ended
        self._delivered = Delivered()
        self._unended = b""
        self._failures = self._missing = 0
        self.stream = Stream()

    def run(self) -> None:
        self._failures = self._missing = 0
        while not self.stream.ended.is_set():
            pause = 0.0
            try:
                # Asked before reading: what the container wrote before its end is then in what is read.
                is_last = self._has_ended(self._pod)
                self._read(follow=not is_last)
                if is_last:
                    return
            except ClusterRefused as error:
                self._failures += 1  # 400: the container waits to start
                self._missing += error.status == 404
                if self._missing == _MISSING:
                    break  # the pod is gone, and its log with it
            except ClusterUnavailable as error:
                self._failures += 1
                pause = error.retry_after_s or 0.0
            self.stream.ended.wait(max(pause, _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]))
        if self._unended:
            self._hand_on([self._unended])
            self._unended = b""

    def _read(self, *, follow: bool) -> None:
        """Hand on what is new, until the stream ends."""
        with api_errors(f"read the log of the pod '{self._pod}'"):
            response = self._open(follow)
            self._failures = self._missing = 0
            self._unended = b""
            split = Splitter(_LONGEST)
            try:
                for chunk in self.stream.chunks(response):
                    self._hand_on(split.feed(chunk))
            except urllib3.exceptions.ReadTimeoutError:
                return
            # The container's last line, or one that is still being written: the next stream tells, if any.
            if follow:
                self._unended = split.rest
            elif split.rest:
                self._hand_on([split.rest])

    def _open(self, follow: bool) -> Any:
        # Not read_namespaced_pod_log, which knows no sinceTime.
        query = [("container", self._container), ("follow", str(follow).lower()), ("timestamps", "true")]
        since = self._delivered.since()
        if since:
            query.append(("sinceTime", since))
        path = f"/api/v1/namespaces/{self._cluster.namespace}/pods/{self._pod}/log"
        response = self._cluster.api.call_api(
            path,
            "GET",
            query_params=query,
            header_params={"Accept": "*/*"},
            auth_settings=["BearerToken"],
            _preload_content=False,
            _return_http_data_only=True,
            _request_timeout=(5, _SILENCE_S),
        )
        # With its head cut off in the middle, an answer looks like an empty one.
        if response.status == 200 and not response.chunked and "Content-Length" not in response.headers:
            response.close()
            raise urllib3.exceptions.ProtocolError("an answer without a length")
        return response

    def _hand_on(self, lines: list[bytes]) -> None:
        fresh = [text for line in lines if (text := self._delivered.take(line)) is not None]
        if fresh:
            self._sink(self._pod, fresh)


class Delivered:
    """Which lines of a log have been handed on, as far as a stream that is taken up again can repeat them."""

    def __init__(self) -> None:
        self._second = self._zone = ""
        self._recent: dict[str, Counter[bytes]] = {}
        self._repeated: dict[str, Counter[bytes]] = {}

    def since(self) -> str | None:
        """Where to take the log up; lines from here on that were delivered before will be recognised."""
        self._repeated = {second: counter.copy() for second, counter in self._recent.items()}
        return f"{_earlier(self._second)}{self._zone}" if self._second else None

    def take(self, line: bytes) -> str | None:
        """The text of a line with its time; None if it was delivered before.

        Args:
            line: `<time> <text>`, the time in RFC 3339. A line without one is the node's own complaint.
        """
        stamp = _STAMP.match(line)
        if stamp is None:
            return line.decode(errors="backslashreplace")
        second = stamp[1].decode()
        repeated = self._repeated.get(second)
        if repeated and repeated[line] > 0:
            repeated[line] -= 1
            return None
        if second > self._second:
            self._second, self._zone = second, stamp[2].decode()
            oldest = _earlier(second)
            self._recent = {key: counter for key, counter in self._recent.items() if key >= oldest}
        self._recent.setdefault(second, Counter())[line] += 1
        return line[stamp.end() :].decode(errors="backslashreplace")


def _earlier(second: str) -> str:
    """The time so far before that streams overlap."""
    return (datetime.fromisoformat(second) - _OVERLAP).isoformat()
