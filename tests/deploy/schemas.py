"""Strict schemas: Kubernetes' kinds by a published copy of its API, Kueue's by what the manifests use of it."""

import kubernetes_validate
from jsonschema import Draft202012Validator

from tests.deploy.manifests import Object

KUBERNETES_VERSIONS = ["1.32", "1.36"]


def validate(item: Object, version: str) -> None:
    """Check an object, unknown fields included. A kind without a schema raises, too."""
    if schema := _KUEUE.get((item["apiVersion"], item["kind"])):
        Draft202012Validator(schema).validate(item)
    else:
        kubernetes_validate.validate(item, version, strict=True)


def _closed(required: dict, optional: dict | None = None) -> dict:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: dict) -> dict:
    return {"type": "array", "items": items, "minItems": 1}


_TEXT = {"type": "string", "minLength": 1}
_LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
_QUANTITY = {"type": "string", "pattern": "^[0-9]+(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"}

_TOLERATION = _closed(
    {},
    {
        "key": _TEXT,
        "operator": {"enum": ["Exists", "Equal"]},
        "value": {"type": "string"},
        "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
    },
)
_RESOURCE_GROUP = _closed(
    {
        "coveredResources": _list(_TEXT),
        "flavors": _list(
            _closed(
                {"name": _NAME, "resources": _list(_closed({"name": _TEXT, "nominalQuota": _QUANTITY}))},
            )
        ),
    }
)
_SPECS = {
    "ResourceFlavor": (_closed({}, {"nodeLabels": _LABELS, "tolerations": _list(_TOLERATION)}), {}),
    "ClusterQueue": (
        _closed(
            {"namespaceSelector": _closed({"matchLabels": _LABELS}), "resourceGroups": _list(_RESOURCE_GROUP)},
            {"queueingStrategy": {"enum": ["StrictFIFO", "BestEffortFIFO"]}},
        ),
        {},
    ),
    "LocalQueue": (_closed({"clusterQueue": _NAME}), {"namespace": _NAME}),
}
_KUEUE = {
    ("kueue.x-k8s.io/v1beta2", kind): _closed(
        {
            "apiVersion": {"const": "kueue.x-k8s.io/v1beta2"},
            "kind": {"const": kind},
            "metadata": _closed({"name": _NAME, **place}, {"labels": _LABELS, "annotations": _LABELS}),
            "spec": spec,
        }
    )
    for kind, (spec, place) in _SPECS.items()
}
