"""The objects of the cluster, their versions, and the history that watches read."""

import contextlib
import copy
import secrets
import threading
import uuid
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from tests.doubles.cluster import errors
from tests.doubles.cluster.resources import PODS

FINALIZERS = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}


class Change(NamedTuple):
    version: int
    type: str
    object: dict
    before: dict | None


class Store:
    """Stored objects are never changed in place, so whoever got one may keep it.

    `changed` is notified at every write, and is the lock of everything here.
    """

    def __init__(self):
        self.changed = threading.Condition()
        self.version = 100
        self.oldest = 0
        self.gpu_quota = None
        """GPUs that all pods together may ask for."""
        self._objects = {}
        self._history = {}
        self._subscribers = {}

    def create(self, resource, item, dry_run=False):
        metadata = item["metadata"]
        if "name" not in metadata:
            metadata["name"] = metadata["generateName"] + secrets.token_hex(3)[:5]
        with self.changed:
            if existing := self.find(resource, metadata.get("namespace"), metadata["name"]):
                deleting = "deletionTimestamp" in existing["metadata"]
                raise errors.already_exists(resource, metadata["name"], deleting)
            metadata["uid"] = str(uuid.uuid4())
            metadata["creationTimestamp"] = timestamp()
            if resource.custom or resource is PODS:
                metadata["generation"] = 1
            if dry_run:
                return item
            return self._write(resource, "ADDED", item, None)

    def find(self, resource, namespace, name):
        with self.changed:
            return self._objects.get(resource, {}).get((namespace if resource.namespaced else None, name))

    def get(self, resource, namespace, name):
        if found := self.find(resource, namespace, name):
            return found
        raise errors.not_found(resource, name)

    def list(self, resource, namespace=None):
        with self.changed:
            items = list(self._objects.get(resource, {}).items())
        items.sort(key=lambda entry: (entry[0][0] or "", entry[0][1]))
        return [item for (where, _), item in items if namespace is None or where == namespace]

    def update(self, resource, namespace, name, change):
        """Apply `change` to a copy of an object, and store it if it is different then."""
        with self.changed:
            before = self.get(resource, namespace, name)
            after = copy.deepcopy(before)
            change(after)
            if after == before:
                return before
            if resource.custom and after.get("spec") != before.get("spec"):
                after["metadata"]["generation"] += 1
            after = self._write(resource, "MODIFIED", after, before)
            if resource is not PODS and is_deleted(after) and not after["metadata"].get("finalizers"):
                return self.remove(resource, namespace, name)
            return after

    def remove(self, resource, namespace, name):
        """Take an object out, whatever its finalizers."""
        with self.changed:
            item = copy.deepcopy(self.get(resource, namespace, name))
            return self._write(resource, "DELETED", item, item)

    def delete(self, resource, namespace, name, *, policy=None, grace=None, uid=None):
        """Delete as a client asks for it: the object, and whether it is gone already."""
        with self.changed:
            item = self.get(resource, namespace, name)
            if uid not in (None, item["metadata"]["uid"]):
                raise errors.wrong_uid(resource, name, uid, item["metadata"]["uid"])
            if resource is PODS:
                return self._delete_pod(item, grace)
            finalizers = list(item["metadata"].get("finalizers") or [])
            if policy in FINALIZERS and FINALIZERS[policy] not in finalizers:
                finalizers.append(FINALIZERS[policy])
            if not finalizers:
                return self.remove(resource, namespace, name), True
            return self.update(resource, namespace, name, lambda item: _mark(item, 0, finalizers)), False

    def compact(self):
        """Forget the history so far, as etcd does every few minutes."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            for history in self._history.values():
                history.clear()

    def changes(self, resource, after):
        """The history of one kind beyond a version; raises LookupError where it is forgotten."""
        with self.changed:
            if after < self.oldest:
                raise LookupError(self.oldest)
            history = self._history.get(resource, [])
            start = len(history)
            while start and history[start - 1].version > after:
                start -= 1
            return history[start:]

    @contextlib.contextmanager
    def subscription(self, resource):
        """A queue of what changes from now on, which a later compaction does not touch."""
        queue = deque()
        with self.changed:
            self._subscribers.setdefault(resource, []).append(queue)
        try:
            yield queue
        finally:
            with self.changed:
                self._subscribers[resource] = [each for each in self._subscribers[resource] if each is not queue]

    def _delete_pod(self, pod, grace):
        spec, metadata = pod["spec"], pod["metadata"]
        key = PODS, metadata["namespace"], metadata["name"]
        if grace is None:
            grace = spec["terminationGracePeriodSeconds"]
        if not spec.get("nodeName") or pod["status"]["phase"] in ("Succeeded", "Failed"):
            grace = 0
        if is_deleted(pod) and grace >= metadata["deletionGracePeriodSeconds"]:
            return pod, False
        marked = self.update(*key, lambda pod: _mark(pod, grace, metadata.get("finalizers")))
        if grace > 0:
            return marked, False
        return self.remove(*key), True

    def _write(self, resource, kind, item, before):
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        key = item["metadata"].get("namespace") if resource.namespaced else None, item["metadata"]["name"]
        objects = self._objects.setdefault(resource, {})
        if kind == "DELETED":
            objects.pop(key)
        else:
            objects[key] = item
        change = Change(self.version, kind, item, before)
        self._history.setdefault(resource, []).append(change)
        for queue in self._subscribers.get(resource, []):
            queue.append(change)
        self.changed.notify_all()
        return item


def is_deleted(item):
    return "deletionTimestamp" in item["metadata"]


def timestamp(moment=None):
    return (moment or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _mark(item, grace, finalizers):
    metadata = item["metadata"]
    if not is_deleted(item):
        metadata["generation"] = metadata.get("generation", 1) + 1
    metadata["deletionTimestamp"] = timestamp(datetime.now(UTC) + timedelta(seconds=grace))
    metadata["deletionGracePeriodSeconds"] = grace
    if finalizers:
        metadata["finalizers"] = finalizers
