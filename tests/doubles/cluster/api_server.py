"""The verbs of the API."""

import base64
import json
import re
import threading
from dataclasses import dataclass, field

from tests.doubles.cluster import errors, logs, pages, schema, watches
from tests.doubles.cluster.access import Access
from tests.doubles.cluster.defaults import (
    check_pod,
    check_service,
    default_pod,
    default_service,
    metadata_violations,
)
from tests.doubles.cluster.discovery import discover
from tests.doubles.cluster.http_server import Hangup, HttpServer, Response, Stream
from tests.doubles.cluster.resources import (
    ALWAYS,
    CLAIMS,
    INSTALLABLE,
    NAMESPACES,
    PODS,
    PYTORCHJOBS,
    SECRETS,
    SERVICES,
    TRAINJOBS,
)
from tests.doubles.cluster.selection import field_selector, label_selector
from tests.doubles.cluster.trainer_webhook import check_trainjob, default_trainjob, duplicates
from tests.doubles.cluster.webhook import check_pytorchjob, queue_job

SCHEMAS = {
    PYTORCHJOBS: (schema.pytorchjob, "pytorchReplicaSpecs"),
    TRAINJOBS: (schema.trainjob, "runtimeRef"),
}
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
KEPT = ("name", "namespace", "uid", "creationTimestamp", "generation", "deletionTimestamp")
POLICIES = ("Foreground", "Background", "Orphan")


@dataclass
class Accident:
    """An answer in place of the right one; status 0 cuts the connection."""

    status: int
    times: int
    method: str | None = None
    path: str | None = None
    body: object = None
    headers: dict = field(default_factory=dict)
    after: bool = False
    """Whether the request is carried out all the same."""

    def hits(self, request):
        return self.method in (None, request.method) and re.search(self.path or "", request.path)


@dataclass
class Target:
    """What a path leads to."""

    resource: object
    namespace: str | None
    name: str | None
    subresource: str | None


class ApiServer:
    """Serves a store over HTTP.

    Args:
        logs_of: Gives the log of a pod that has started, or raises what its node answers.
    """

    def __init__(self, store, token, namespace, logs_of, port=0):
        self.store = store
        self.access = Access(token, namespace)
        self.requests = []
        self.installed = {PYTORCHJOBS.group}
        self.operator_runs = False
        self._logs_of = logs_of
        self._accidents = []
        self._lock = threading.Lock()
        self.http = HttpServer(self._answer, port)

    def plan(self, accident):
        with self._lock:
            self._accidents.append(accident)

    def _answer(self, request):
        with self._lock:
            self.requests.append(request)
            accident = next((each for each in self._accidents if each.hits(request)), None)
            if accident:
                accident.times -= 1
                if accident.times <= 0:
                    self._accidents.remove(accident)
        if accident and not accident.after:
            return _instead(accident)
        try:
            answer = self._route(request)
        except errors.ApiError as error:
            answer = Response(error.status, error.body, error.headers)
        return _instead(accident) if accident else answer

    def _route(self, request):
        user = self.access.user(request.headers)
        parts = [part for part in request.url.path.split("/") if part]
        served = [*ALWAYS, *(each for each in INSTALLABLE if each.group in self.installed)]
        if parts[:3] == ["apis", "authorization.k8s.io", "v1"] and parts[3:] == ["selfsubjectaccessreviews"]:
            return self._review(request)
        place = _place(parts)
        if place is None:
            return Response(200, discover(parts, served))
        group, version, namespace, plural, name, subresource = place
        verb = _verb(request, name)
        full = f"{plural}/{subresource}" if subresource else plural
        self.access.check(user, verb, group, full, name, namespace)
        for resource in served:
            known = (resource.group, resource.version, resource.plural) == (group, version, plural)
            if known and (subresource is None or subresource in resource.subresources):
                return self._serve(request, Target(resource, namespace, name, subresource), verb)
        raise errors.page_not_found()

    def _review(self, request):
        body = request.body
        status = self.access.review(body["spec"].get("resourceAttributes", {}))
        return Response(201, {**body, "metadata": {}, "status": status})

    def _serve(self, request, target, verb):
        if target.subresource == "log":
            return self._log(target, request.query)
        if verb in ("create", "update", "patch") and target.resource.namespaced:
            _check_media_type(request, target.resource)
        return getattr(self, f"_{verb}")(request, target)

    def _get(self, request, target):
        return Response(200, self.store.get(target.resource, target.namespace, target.name))

    def _list(self, request, target):
        return Response(200, pages.page(self.store, target.resource, target.namespace, request.query))

    def _watch(self, request, target):
        if target.name:
            self.store.get(target.resource, target.namespace, target.name)
        watches.parse_version(request.query.get("resourceVersion", ""))
        selected = selection(target.resource, request.query, target.name)
        pieces = watches.watch(self.store, target.resource, target.namespace, selected, request.query)
        next(pieces)
        return Stream(pieces, "application/json", "watch")

    def _create(self, request, target):
        resource = target.resource
        item = _parse(request, resource)
        warnings = self._check_fields(request, resource, item)
        _check_kind(resource, item)
        metadata = item.setdefault("metadata", {})
        if resource.namespaced:
            if metadata.setdefault("namespace", target.namespace) != target.namespace:
                raise errors.failure(
                    400, "the namespace of the provided object does not match the namespace sent on the request"
                )
            self.store.get(NAMESPACES, None, target.namespace)
        if "dryRun" in request.query and request.query["dryRun"] != "All":
            raise errors.not_in_the_double(f"dryRun={request.query['dryRun']}")
        self._admit(resource, item)
        dry_run = request.query.get("dryRun") == "All"
        return Response(201, self.store.create(resource, item, dry_run), warnings)

    def _update(self, request, target):
        item = _parse(request, target.resource)
        self._check_fields(request, target.resource, item)

        def change(stored):
            _check_version(target, item, stored)
            _replace(stored, item, target.subresource)

        return self._change(target, change)

    def _patch(self, request, target):
        if not isinstance(request.body, dict):
            text = "json: cannot unmarshal array into Go value of type map[string]interface {}"
            raise errors.failure(400, f"error decoding patch: {text}")

        def change(stored):
            _check_version(target, request.body, stored)
            _replace(stored, merged(stored, request.body), target.subresource)

        return self._change(target, change)

    def _change(self, target, change):
        resource = target.resource

        def checked(stored):
            change(stored)
            if resource.custom and target.subresource is None:
                self._check(resource, stored)

        return Response(200, self.store.update(resource, target.namespace, target.name, checked))

    def _delete(self, request, target):
        options = {**(request.body or {}), **request.query}
        policy, grace = options.get("propagationPolicy"), options.get("gracePeriodSeconds")
        if policy not in (None, *POLICIES):
            supported = ", ".join(f'"{each}"' for each in (*POLICIES, "nil"))
            text = f'Unsupported value: "{policy}": supported values: {supported}'
            raise errors.invalid(
                "DeleteOptions", "meta.k8s.io", "", [("propagationPolicy", "FieldValueNotSupported", text)]
            )
        item, gone = self.store.delete(
            target.resource,
            target.namespace,
            target.name,
            policy=policy,
            grace=None if grace is None else int(grace),
            uid=(options.get("preconditions") or {}).get("uid"),
        )
        if not gone or target.resource is PODS:
            return Response(200, item)
        details = {**errors.details_of(target.resource, target.name), "uid": item["metadata"]["uid"]}
        body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return Response(200, body)

    def _deletecollection(self, request, target):
        selected = selection(target.resource, request.query)
        for item in self.store.list(target.resource, target.namespace):
            if selected(item):
                name = item["metadata"]["name"]
                self._delete(request, Target(target.resource, target.namespace, name, None))
        return Response(200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    def _log(self, target, query):
        options = logs.LogOptions(target.name, query)
        pod = self.store.get(PODS, target.namespace, target.name)
        containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]
        wanted = query.get("container", containers[0]["name"])
        container = next((each for each in containers if each["name"] == wanted), None)
        if container is None:
            raise errors.failure(400, f"container {wanted} is not valid for pod {target.name}")
        if not pod["spec"].get("nodeName"):
            return Response(204, b"")
        if options.previous:
            raise logs.no_previous(target.name, wanted)
        if container is not pod["spec"]["containers"][0]:
            raise errors.not_in_the_double("logs of init containers")
        if refusal := logs.waiting(pod, container):
            raise refusal
        return Stream(logs.stream(self._logs_of(pod), options), "text/plain", "log")

    def _check_fields(self, request, resource, item):
        """Refuse or report fields that the kind does not have, as the client asked for."""
        if resource not in SCHEMAS:
            return {}
        kind, _ = SCHEMAS[resource]
        unknown = schema.unknown_fields(item, kind())
        policy = request.query.get("fieldValidation", "Warn")
        if unknown and policy == "Strict":
            raise errors.unknown_fields(resource, unknown)
        schema.prune(item, kind())
        if unknown and policy == "Warn":
            return {"Warning": ", ".join(rf'299 - "unknown field \"{path}\""' for path in unknown)}
        return {}

    def _admit(self, resource, item):
        """Fill in and check what a client wants to create."""
        if resource.custom:
            item.pop("status", None)
            if isinstance(item.get("spec"), dict):
                queue_job(item, self.store)
        self._check(resource, item)
        if resource is PODS:
            default_pod(item)
            check_pod(item, self.store)
        elif resource is SERVICES:
            default_service(item)
            check_service(item)
        elif resource is SECRETS:
            text = item.pop("stringData", {})
            item["data"] = {**item.get("data", {}), **{key: _base64(value) for key, value in text.items()}}
        elif resource is CLAIMS:
            item["status"] = {"phase": "Pending"}

    def _check(self, resource, item):
        causes = metadata_violations(item)
        if resource in SCHEMAS:
            kind, required = SCHEMAS[resource]
            causes += schema.violations(item, kind(), required)
        if resource is TRAINJOBS and not causes:
            causes += duplicates(item)
        if causes:
            raise errors.invalid(resource.kind, resource.group, item["metadata"].get("name", ""), causes)
        if resource is PYTORCHJOBS:
            if "runPolicy" in item["spec"]:
                item["spec"]["runPolicy"].setdefault("suspend", False)
            check_pytorchjob(item, self.operator_runs)
            _check_supported(item)
        elif resource is TRAINJOBS:
            default_trainjob(item)
            check_trainjob(item, self.store, self.operator_runs)


def selection(resource, query, name=None):
    """A test of objects: the selectors of a request, and the name in its path."""
    labels = label_selector(query.get("labelSelector", ""))
    fields = field_selector(resource, query.get("fieldSelector", ""))
    return lambda item: labels(item) and fields(item) and name in (None, item["metadata"]["name"])


def merged(stored, patch):
    """RFC 7386: objects are merged, null takes out, everything else replaces."""
    if not isinstance(patch, dict) or not isinstance(stored, dict):
        return patch if not isinstance(patch, dict) else merged({}, patch)
    result = dict(stored)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(stored.get(key), value)
    return result


def _instead(accident):
    if accident.status == 0:
        raise Hangup
    body = accident.body
    if body is None:
        body = errors.status_body(accident.status, "an accident that the test planned")
    return Response(accident.status, body, dict(accident.headers or {}))


def _place(parts):
    """Group, version, namespace, plural, name and subresource of a path, if it is that of a kind."""
    if parts[:2] == ["api", "v1"]:
        group, version, rest = "", "v1", parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = None
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    if not rest:
        return None
    plural, name, subresource = [*rest, None, None][:3]
    return group, version, namespace, plural, name, subresource


def _verb(request, name):
    if request.method == "GET":
        if request.query.get("watch") in ("true", "1", "True"):
            return "watch"
        return "get" if name else "list"
    if request.method == "DELETE" and not name:
        return "deletecollection"
    return VERBS[request.method]


def _check_media_type(request, resource):
    given = (request.headers.get("Content-Type") or "").split(";")[0]
    if request.method == "PATCH":
        accepted = errors.PATCH_TYPES if resource.custom else errors.CORE_PATCH_TYPES
        if given == "application/json-patch+json":
            raise errors.not_in_the_double("JSON patches")
    else:
        accepted = errors.WRITABLE_TYPES
    if given not in accepted.split(", "):
        raise errors.unknown_media_type(accepted)


def _parse(request, resource):
    if not isinstance(request.body, dict):
        raise errors.not_json(resource, request.raw.decode(errors="replace"))
    return json.loads(request.raw)


def _check_kind(resource, item):
    kind = item.get("kind", resource.kind)
    if kind != resource.kind:
        name = item.get("metadata", {}).get("name", "")
        text = f'Invalid value: "{kind}": must be {resource.kind}'
        raise errors.invalid(kind, resource.group, name, [("kind", "FieldValueInvalid", text)])
    item.setdefault("kind", resource.kind)
    item.setdefault("apiVersion", resource.api_version)


def _check_version(target, item, stored):
    wanted = (item.get("metadata") or {}).get("resourceVersion")
    if wanted not in (None, stored["metadata"]["resourceVersion"]):
        raise errors.modified(target.resource, target.name)


def _replace(stored, item, subresource):
    """Take over what a client may change; the status has a path of its own."""
    metadata = {key: stored["metadata"][key] for key in KEPT if key in stored["metadata"]}
    grace = stored["metadata"].get("deletionGracePeriodSeconds")
    status = stored.get("status")
    if subresource == "status":
        if "status" in item:
            stored["status"] = item["status"]
        return
    new = {**item, "apiVersion": stored["apiVersion"], "kind": stored["kind"]}
    new["metadata"] = {**(item.get("metadata") or {}), **metadata}
    new["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
    if grace is not None:
        new["metadata"]["deletionGracePeriodSeconds"] = grace
    stored.clear()
    stored.update(new)
    stored.pop("status", None)
    if status is not None:
        stored["status"] = status


def _check_supported(job):
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        policy = replica.get("restartPolicy", "OnFailure")
        if policy in ("OnFailure", "Always", "ExitCode"):
            raise errors.not_in_the_double(f"restartPolicy {policy}; it runs containers once (Never)")


def _base64(text):
    return base64.b64encode(text.encode()).decode()
