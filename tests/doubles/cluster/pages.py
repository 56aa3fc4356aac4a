"""Lists, in one piece or in pages."""

import base64
import json

from tests.doubles.cluster import errors, watches
from tests.doubles.cluster.selection import field_selector, label_selector


def page(store, resource, namespace, query):
    """The list, or the part of it that `limit` and `continue` ask for."""
    version = watches.parse_version(query.get("resourceVersion", ""))
    if version > store.version:
        raise errors.from_the_future(version, store.version)
    if query.get("resourceVersionMatch") == "Exact" and version < store.oldest:
        raise errors.list_too_old()
    labels = label_selector(query.get("labelSelector", ""))
    fields = field_selector(resource, query.get("fieldSelector", ""))
    with store.changed:
        items = [item for item in store.list(resource, namespace) if labels(item) and fields(item)]
        listed = current = store.version
    if token := query.get("continue"):
        start, at = _decode(token)
        if 0 <= at < store.oldest:
            raise errors.page_too_old(_encode(start, -1))
        listed = at if at >= 0 else current
        items = [item for item in items if item["metadata"]["name"] >= start.rstrip("\0")]
    rest = []
    if limit := int(query.get("limit", 0)):
        items, rest = items[:limit], items[limit:]
    metadata = {"resourceVersion": str(listed)}
    if rest:
        metadata["continue"] = _encode(rest[0]["metadata"]["name"] + "\0", listed)
        metadata["remainingItemCount"] = len(rest)
    if resource.custom:
        metadata.setdefault("continue", "")
        return {
            "apiVersion": resource.api_version,
            "items": items,
            "kind": f"{resource.kind}List",
            "metadata": metadata,
        }
    items = [{key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in items]
    return {"kind": f"{resource.kind}List", "apiVersion": "v1", "metadata": metadata, "items": items}


def _encode(start, version):
    text = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": start}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(token):
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    try:
        content = json.loads(raw)
        return content["start"], content["rv"]
    except (ValueError, KeyError):
        first = raw[:1].decode("latin-1")
        raise errors.failure(
            400,
            f"invalid continue token: continue key is not valid: invalid character '{first}' "
            "looking for beginning of value",
        ) from None
