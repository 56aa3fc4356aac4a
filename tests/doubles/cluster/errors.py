"""Refusals of the API server, as Status bodies."""

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    504: "Timeout",
}
PYTORCH_WEBHOOK = "validator.pytorchjob.training-operator.kubeflow.org"
PYTORCH_WEBHOOK_URL = (
    "https://training-operator.kubeflow.svc:443/validate-kubeflow-org-v1-pytorchjob?timeout=10s",
    "training-operator",
)
WRITABLE_TYPES = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
PATCH_TYPES = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
CORE_PATCH_TYPES = (
    "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, "
    "application/apply-patch+yaml"
)


class ApiError(Exception):
    """An answer that is not a success; `body` is the Status, or text that is sent as it is."""

    def __init__(self, status, body, headers=None):
        super().__init__(body if isinstance(body, str) else body["message"])
        self.status = status
        self.body = body
        self.headers = headers or {}


def status_body(code, message, reason=None, details=None):
    """The Status of a failure, with its keys in the server's order."""
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    if reason := reason if reason is not None else REASONS.get(code, ""):
        body["reason"] = reason
    if details:
        body["details"] = details
    return {**body, "code": code}


def failure(code, message, reason=None, details=None, headers=None):
    return ApiError(code, status_body(code, message, reason, details), headers)


def page_not_found():
    """What a path gives that leads nowhere, such as a group that is not installed."""
    return ApiError(404, "404 page not found\n")


def not_found(resource, name):
    return failure(404, f'{resource.full_name} "{name}" not found', details=details_of(resource, name))


def already_exists(resource, name, being_deleted=False):
    prefix = "object is being deleted: " if being_deleted else ""
    message = f'{prefix}{resource.full_name} "{name}" already exists'
    return failure(409, message, "AlreadyExists", details_of(resource, name))


def modified(resource, name):
    message = (
        f'Operation cannot be fulfilled on {resource.full_name} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    return failure(409, message, details=details_of(resource, name))


def wrong_uid(resource, name, wanted, found):
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    message = (
        f'Operation cannot be fulfilled on {kind} "{name}": the UID in the precondition ({wanted}) does not match '
        f"the UID in record ({found}). The object might have been deleted and then recreated"
    )
    details = {"name": name, **({"group": resource.group} if resource.group else {}), "kind": resource.kind}
    return failure(409, message, details=details)


def unauthorized():
    return failure(401, "Unauthorized")


def forbidden(user, verb, group, resource, name, namespace):
    """What role-based access control says; `resource` may carry a subresource, as in `pods/log`."""
    plural = resource.split("/")[0]
    full = f"{plural}.{group}" if group else plural
    subject = f'{full} "{name}"' if name else full
    where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
    message = (
        f'{subject} is forbidden: User "{user}" cannot {verb} resource "{resource}" in API group "{group}"{where}'
    )
    details = {**({"name": name} if name else {}), **({"group": group} if group else {}), "kind": plural}
    return failure(403, message, details=details)


def quota_exceeded(pod, quota, resource, requested, used, limit):
    message = (
        f'pods "{pod}" is forbidden: exceeded quota: {quota}, requested: {resource}={requested}, '
        f"used: {resource}={used}, limited: {resource}={limit}"
    )
    return failure(403, message, details={"name": pod, "kind": "pods"})


def denied_by_webhook(causes, webhook=PYTORCH_WEBHOOK):
    """A webhook's refusal. Unlike that of access control it has no details."""
    text = causes[0] if len(causes) == 1 else f"[{', '.join(causes)}]"
    return failure(403, f'admission webhook "{webhook}" denied the request: {text}')


def webhook_unreachable(webhook=PYTORCH_WEBHOOK, address=PYTORCH_WEBHOOK_URL):
    url, service = address
    cause = (
        f'failed calling webhook "{webhook}": failed to call webhook: Post "{url}": '
        f'no endpoints available for service "{service}"'
    )
    return failure(500, f"Internal error occurred: {cause}", details={"causes": [{"message": cause}]})


def invalid(kind, group, name, causes):
    """An object that fails validation.

    Args:
        causes: Pairs of a field and what is wrong with it, the latter with its reason before.
    """
    texts = [f"{path}: {message}" for path, _, message in causes]
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    full = f"{kind}.{group}" if group else kind
    details = {
        **({"name": name} if name else {}),
        **({"group": group} if group else {}),
        "kind": kind,
        "causes": [{"reason": reason, "message": message, "field": path} for path, reason, message in causes],
    }
    return failure(422, f'{full} "{name}" is invalid: {text}', details=details)


def unknown_fields(resource, paths):
    listed = ", ".join(f'unknown field "{path}"' for path in paths)
    return failure(
        400,
        f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
        f"strict decoding error: {listed}",
    )


def not_json(resource, text):
    shown = text if len(text) <= 30 else f"{text[:30]} ..."
    return failure(
        400,
        f"the object provided is unrecognized (must be of type {resource.kind}): couldn't get version/kind; "
        f"json parse error: unexpected end of JSON input ({shown})",
    )


def unknown_media_type(accepted):
    return failure(
        415,
        f"the body of the request was in an unknown format - accepted media types include: {accepted}",
    )


def too_old(version, oldest):
    return status_body(410, f"too old resource version: {version} ({oldest})")


def list_too_old():
    return failure(410, "The resourceVersion for the provided list is too old.")


def page_too_old(token):
    error = failure(
        410,
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter, or use the continue token in this response to retrieve the remainder of "
        "the results. Continuing with the provided token results in an inconsistent list - objects that were "
        "created, modified, or deleted between the time the first chunk was returned and now may show up in the "
        "list.",
    )
    error.body["metadata"] = {"continue": token}
    return error


def from_the_future(version, current):
    return failure(
        504,
        f"Timeout: Too large resource version: {version}, current: {current}",
        details={
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        },
        headers={"Retry-After": "1"},
    )


def not_a_version(text):
    return failure(
        500,
        f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax',
        reason="",
    )


def not_in_the_double(what):
    """A request that the double does not understand; loud, because no real server answers so."""
    return failure(501, f"the double of the cluster does not support {what}", "NotImplemented")


def details_of(resource, name):
    return {"name": name, **({"group": resource.group} if resource.group else {}), "kind": resource.plural}
