"""Writes Events, and counts those that repeat."""

import time

from tests.doubles.cluster.objects import timestamp
from tests.doubles.cluster.resources import EVENTS


class Recorder:
    """Events of one component, such as the kubelet of a node."""

    def __init__(self, store, component, host=None):
        self._store = store
        self._component = component
        self._host = host

    def normal(self, item, reason, message, path=None):
        self._record("Normal", item, reason, message, path)

    def warning(self, item, reason, message, path=None):
        self._record("Warning", item, reason, message, path)

    def _record(self, kind, item, reason, message, path):
        with self._store.changed:
            if existing := self._same(item, reason, message):
                name = existing["metadata"]["name"]
                self._store.update(EVENTS, existing["metadata"]["namespace"], name, _count)
            else:
                self._store.create(EVENTS, self._event(kind, item, reason, message, path))

    def _same(self, item, reason, message):
        for event in self._store.list(EVENTS, item["metadata"]["namespace"]):
            same = event["involvedObject"]["uid"], event["reason"], event["message"]
            if same == (item["metadata"]["uid"], reason, message):
                return event
        return None

    def _event(self, kind, item, reason, message, path):
        metadata = item["metadata"]
        now = timestamp()
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{metadata['name']}.{time.time_ns():x}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "kind": item["kind"],
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
                "apiVersion": item["apiVersion"],
                "resourceVersion": metadata["resourceVersion"],
                **({"fieldPath": path} if path else {}),
            },
            "reason": reason,
            "message": message,
            "source": {"component": self._component, **({"host": self._host} if self._host else {})},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "type": kind,
            "eventTime": None,
            "reportingComponent": self._component,
            "reportingInstance": self._host or "",
        }


def _count(event):
    event["count"] += 1
    event["lastTimestamp"] = timestamp()
