"""The schema of a PyTorchJob, as its definition (training-operator 1.9) carries it."""

import re
from functools import cache

from kubernetes import client

QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|"
    r"([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
NOT_CHECKED = (
    "Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation"
)
TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
ANY = "any"
CONTAINER_PATCH = {
    "name": "string",
    "env": [lambda: _model("V1EnvVar")],
    "volumeMounts": [lambda: _model("V1VolumeMount")],
    "securityContext": lambda: _model("V1SecurityContext"),
}


def unknown_fields(item, schema):
    """Paths that the schema does not have, in the order of the object."""
    return [path for path, known, _, _ in _walk(item, schema, "") if not known]


def prune(item, schema):
    """Take out what the schema does not have, as the server does before it stores an object."""
    for key in [key for key in item if _below(schema, key) is None]:
        del item[key]
    for key, value in item.items():
        for child, _ in _children(value):
            if isinstance(child, dict) and isinstance(_item_schema(_below(schema, key)), dict):
                prune(child, _item_schema(_below(schema, key)))


def violations(item, schema, required):
    """What is wrong with an object, as field, reason and message.

    Args:
        required: The one field of `spec` that must be there.
    """
    causes = []
    for path, known, kind, value in _walk(item, schema, ""):
        if not known:
            continue
        if kind == "quantity":
            if isinstance(value, str) and not re.match(QUANTITY, value):
                text = f"Invalid value: {_quoted(value)}: {path} in body should match '{QUANTITY}'"
                causes.append((path, "FieldValueInvalid", text))
        elif isinstance(kind, str) and kind != ANY and TYPES[type(value)] != kind:
            found = TYPES[type(value)]
            text = f'Invalid value: "{found}": {path} in body must be of type {kind}: "{found}"'
            causes.append((path, "FieldValueTypeInvalid", text))
            if path == "spec.pytorchReplicaSpecs.Worker.replicas":
                text = f"Invalid value: 0: .{path} accessor error: {value} is of the type {found}, expected int64"
                causes.append((f".{path}", "FieldValueInvalid", text))
    if required not in item.get("spec", {}):
        causes.append((f"spec.{required}", "FieldValueRequired", "Required value"))
    if any(reason in ("FieldValueTypeInvalid", "FieldValueRequired") for _, reason, _ in causes):
        causes.append(("<nil>", "FieldValueInvalid", NOT_CHECKED))
    return causes


@cache
def pytorchjob():
    replica = {"replicas": "integer", "restartPolicy": "string", "template": pod_template()}
    scheduling = {
        "minAvailable": "integer",
        "minResources": {"*": "quantity"},
        "priorityClass": "string",
        "queue": "string",
        "scheduleTimeoutSeconds": "integer",
    }
    policy = {
        "activeDeadlineSeconds": "integer",
        "backoffLimit": "integer",
        "cleanPodPolicy": "string",
        "managedBy": "string",
        "schedulingPolicy": scheduling,
        "suspend": "boolean",
        "ttlSecondsAfterFinished": "integer",
    }
    elastic = {
        "maxReplicas": "integer",
        "maxRestarts": "integer",
        "metrics": [ANY],
        "minReplicas": "integer",
        "nProcPerNode": "integer",
        "rdzvBackend": "string",
        "rdzvConf": [{"key": "string", "value": "string"}],
        "rdzvHost": "string",
        "rdzvId": "string",
        "rdzvPort": "integer",
        "standalone": "boolean",
    }
    spec = {
        "elasticPolicy": elastic,
        "nprocPerNode": "string",
        "pytorchReplicaSpecs": {"*": replica},
        "runPolicy": policy,
    }
    return {"apiVersion": "string", "kind": "string", "metadata": ANY, "spec": spec, "status": ANY}


@cache
def trainjob():
    """The schema of a TrainJob (Trainer 2.3)."""
    pod = {
        "serviceAccountName": "string",
        "volumes": [lambda: _model("V1Volume")],
        "initContainers": [CONTAINER_PATCH],
        "containers": [CONTAINER_PATCH],
        "imagePullSecrets": [{"name": "string"}],
        "securityContext": lambda: _model("V1PodSecurityContext"),
        "nodeSelector": {"*": "string"},
        "affinity": lambda: _model("V1Affinity"),
        "tolerations": [lambda: _model("V1Toleration")],
        "schedulingGates": [{"name": "string"}],
    }
    template = {"metadata": ANY, "spec": {"template": {"metadata": ANY, "spec": pod}}}
    jobs = {"replicatedJobs": [{"name": "string", "template": template}]}
    patch = {
        "manager": "string",
        "time": "string",
        "trainingRuntimeSpec": {"template": {"metadata": ANY, "spec": jobs}},
    }
    trainer = {
        "image": "string",
        "command": ["string"],
        "args": ["string"],
        "env": [lambda: _model("V1EnvVar")],
        "numNodes": "integer",
        "resourcesPerNode": lambda: _model("V1ResourceRequirements"),
        "numProcPerNode": "integer",
    }
    spec = {
        "runtimeRef": {"name": "string", "apiGroup": "string", "kind": "string"},
        "initializer": ANY,
        "trainer": trainer,
        "runtimePatches": [patch],
        "suspend": "boolean",
        "managedBy": "string",
    }
    return {"apiVersion": "string", "kind": "string", "metadata": ANY, "spec": spec, "status": ANY}


@cache
def pod_template():
    """A pod template; the client's models know the fields of every level."""
    metadata = {
        "annotations": {"*": "string"},
        "finalizers": ["string"],
        "labels": {"*": "string"},
        "name": "string",
        "namespace": "string",
    }
    return {"metadata": metadata, "spec": _model("V1PodSpec")}


@cache
def _model(name):
    model = getattr(client, name)
    schema = {}
    for attribute, kind in model.openapi_types.items():
        schema[model.attribute_map[attribute]] = _kind(kind)
    if name == "V1ResourceRequirements":
        schema["limits"] = schema["requests"] = {"*": "quantity"}
    return schema


def _kind(text):
    simple = {"str": "string", "int": "integer", "bool": "boolean", "float": "number", "datetime": "string"}
    if text in simple:
        return simple[text]
    if text == "object":
        return ANY
    if match := re.fullmatch(r"list\[(.*)\]", text):
        return [_kind(match[1])]
    if match := re.fullmatch(r"dict\(str, (.*)\)", text):
        return {"*": _kind(match[1])}
    # A model is looked up when it is walked to, because some contain themselves.
    return lambda: _model(text)


def _walk(item, schema, path):
    for key, value in item.items():
        here = f"{path}.{key}" if path else key
        below = _below(schema, key)
        if below is None:
            yield here, False, None, value
            continue
        wanted = {dict: "object", list: "array"}.get(type(below), below)
        if value is not None and wanted != ANY:
            yield here, True, wanted, value
        for child, index in _children(value):
            if isinstance(child, dict) and isinstance(_item_schema(below), dict):
                yield from _walk(child, _item_schema(below), f"{here}[{index}]" if index is not None else here)


def _children(value):
    if isinstance(value, dict):
        return [(value, None)]
    if isinstance(value, list):
        return [(child, index) for index, child in enumerate(value)]
    return []


def _below(schema, key):
    if schema == ANY:
        return ANY
    below = schema.get(key, schema.get("*")) if isinstance(schema, dict) else None
    return below() if callable(below) else below


def _item_schema(schema):
    item = schema[0] if isinstance(schema, list) else schema
    return item() if callable(item) else item


def _quoted(text):
    return '"' + text + '"'
