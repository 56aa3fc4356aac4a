"""Watches: what changed since a version, and what changes from now on."""

import json
import random
import time

from tests.doubles.cluster import errors

BOOKMARK_BEFORE_END = 1.8
"""Seconds before its end at which a watch says how far it has come."""
PATIENCE = 1.0
"""Seconds without a change after which a watch looks whether its client is still there."""


def watch(store, resource, namespace, selected, options):
    """Lines of a watch, one event each; an empty one at first, and now and then to ask whether somebody listens.

    Args:
        selected: A test of the objects that the client wants.
        options: The query parameters.
    """
    version = parse_version(options.get("resourceVersion", ""))
    timeout = float(options.get("timeoutSeconds") or random.uniform(1800, 3600))
    end = time.monotonic() + timeout
    bookmark = end - BOOKMARK_BEFORE_END if _wants_bookmarks(options) and timeout > 2 else None
    with store.subscription(resource) as queue:
        with store.changed:
            queue.clear()
            try:
                first = _first(store, resource, namespace, selected, version, options)
            except LookupError as error:
                end = 0.0
                first = [_line("ERROR", errors.too_old(version, error.args[0]))]
        # From here on nothing is missed; whoever starts the generator waits for this.
        yield b""
        yield from first
        while (left := end - time.monotonic()) > 0:
            with store.changed:
                if not queue:
                    store.changed.wait(max(0.0, min(left, PATIENCE, (bookmark or end) - time.monotonic())))
                fresh = list(queue)
                queue.clear()
                current = store.version
            lines = [line for change in fresh if (line := _event(change, namespace, selected, version))]
            if bookmark and time.monotonic() >= bookmark:
                bookmark = None
                lines.append(_bookmark(resource, current))
            yield from lines or [b""]


def parse_version(text):
    if text and not text.isdigit():
        raise errors.not_a_version(text)
    return int(text or 0)


def _first(store, resource, namespace, selected, version, options):
    """What comes at once: everything, if no version is given, else what happened since."""
    if version and version < store.version:
        changes = store.changes(resource, version)
        return [line for change in changes if (line := _event(change, namespace, selected, version))]
    lines = []
    if not version or options.get("sendInitialEvents") == "true":
        lines = [_line("ADDED", item) for item in store.list(resource, namespace) if selected(item)]
    if options.get("sendInitialEvents") == "true":
        lines.append(_bookmark(resource, store.version, {"k8s.io/initial-events-end": "true"}))
    return lines


def _event(change, namespace, selected, version):
    """The event that a change is to this client: an object may come into its selection, and leave it."""
    if change.version <= version or namespace not in (None, change.object["metadata"].get("namespace")):
        return None
    now = change.type != "DELETED" and selected(change.object)
    before = change.before is not None and selected(change.before)
    if now:
        return _line("MODIFIED" if before else "ADDED", change.object)
    return _line("DELETED", change.object) if before else None


def _wants_bookmarks(options):
    return options.get("allowWatchBookmarks") in ("true", "1", "True")


def _bookmark(resource, version, annotations=None):
    metadata = {**({"annotations": annotations} if annotations else {}), "resourceVersion": str(version)}
    return _line("BOOKMARK", {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata})


def _line(kind, item):
    return json.dumps({"type": kind, "object": item}, separators=(",", ":")).encode() + b"\n"
