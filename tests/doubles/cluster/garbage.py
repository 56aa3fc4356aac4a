"""The garbage collector: what becomes of objects whose owner is deleted."""

from tests.doubles.cluster.controller import Controller
from tests.doubles.cluster.errors import ApiError
from tests.doubles.cluster.objects import FINALIZERS, is_deleted
from tests.doubles.cluster.resources import ALWAYS, INSTALLABLE, PODS, SERVICES

DEPENDENTS = (PODS, SERVICES, *INSTALLABLE)
OWNERS = (*ALWAYS, *INSTALLABLE)
KINDS = {resource.kind for resource in OWNERS}


class GarbageCollector:
    def __init__(self, store, lag):
        self._store = store
        self._controller = Controller(store, "garbage-collector", self._step, lag)

    def stop(self):
        self._controller.stop()

    def _step(self):
        alive = set()
        for resource in OWNERS:
            for item in self._store.list(resource):
                alive.add(item["metadata"]["uid"])
                if resource in INSTALLABLE and is_deleted(item):
                    self._finish(resource, item)
        for resource in DEPENDENTS:
            for item in self._store.list(resource):
                owners = item["metadata"].get("ownerReferences") or []
                # Of a kind that is not served here, nobody can say that it is gone.
                held = any(owner["uid"] in alive or owner["kind"] not in KINDS for owner in owners)
                if owners and not held and not is_deleted(item):
                    self._delete(resource, item)

    def _finish(self, owner_resource, owner):
        """Go on with a deletion that waits for what the owner has."""
        finalizers = owner["metadata"].get("finalizers", [])
        owned = [
            (resource, item)
            for resource in DEPENDENTS
            for item in self._store.list(resource)
            if owner["metadata"]["uid"] in {each["uid"] for each in item["metadata"].get("ownerReferences") or []}
        ]
        if FINALIZERS["Orphan"] in finalizers:
            for resource, item in owned:
                self._change(resource, item, lambda item: item["metadata"].pop("ownerReferences"))
            self._change(owner_resource, owner, lambda item: item["metadata"]["finalizers"].remove("orphan"))
        elif FINALIZERS["Foreground"] in finalizers:
            for resource, item in owned:
                if not is_deleted(item):
                    self._delete(resource, item)
            if not owned:
                done = FINALIZERS["Foreground"]
                self._change(owner_resource, owner, lambda item: item["metadata"]["finalizers"].remove(done))

    def _delete(self, resource, item):
        metadata = item["metadata"]
        try:
            self._store.delete(resource, metadata.get("namespace"), metadata["name"], uid=metadata["uid"])
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def _change(self, resource, item, change):
        try:
            self._store.update(resource, item["metadata"].get("namespace"), item["metadata"]["name"], change)
        except ApiError as error:
            if error.status != 404:
                raise
