"""What Kubernetes accepts in the fields of a manifest, so that a mistake is told before a pod is asked for."""

import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError

RULE = "kubernetes_rule"
"""Type of the errors that are raised here; their message goes on after the value."""

_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_PART}(\.{_PART})*"
_LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_QUALIFIED = rf"({_SUBDOMAIN}/)?{_LABEL_NAME}"

_IMAGE = (
    r"([A-Za-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[A-Za-z0-9+._-]+:[0-9a-f]{32,})?"
)

_QUANTITY = r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?"

_NATIVE = r"cpu|memory|ephemeral-storage|hugepages-[0-9]+[KMG]i"
"""Resources whose names have no domain."""


def _matching(pattern: str, allowed: str, longest: int = 253) -> AfterValidator:
    def check(text: str) -> str:
        if len(text) > longest or not re.fullmatch(pattern, text):
            raise broken(allowed)
        return text

    return AfterValidator(check)


def broken(allowed: str) -> PydanticCustomError:
    """The error of a value that keeps to no rule, with what is allowed instead."""
    return PydanticCustomError(RULE, "{allowed}", {"allowed": allowed})


def is_name(text: str) -> bool:
    """Whether an object in Kubernetes can have this name."""
    return len(text) <= 253 and re.fullmatch(_SUBDOMAIN, text) is not None


def is_namespace(text: str) -> bool:
    """Whether a namespace can have this name."""
    return len(text) <= 63 and re.fullmatch(_PART, text) is not None


def is_image(text: str) -> bool:
    """Whether the text can refer to an image."""
    return len(text) <= 500 and re.fullmatch(_IMAGE, text) is not None


KubernetesName = Annotated[
    str,
    _matching(
        _SUBDOMAIN,
        "the name of a Kubernetes object has at most 253 lower-case letters, digits, '-' and '.', and begins and "
        "ends with a letter or digit",
    ),
]

Namespace = Annotated[
    str,
    _matching(
        _PART,
        "a namespace has at most 63 lower-case letters, digits and '-', and begins and ends with a letter or "
        "digit",
        63,
    ),
]

QueueName = Annotated[
    str,
    _matching(
        _SUBDOMAIN,
        "a queue has at most 63 lower-case letters, digits, '-' and '.', and begins and ends with a letter or "
        "digit",
        63,
    ),
]

Image = Annotated[
    str,
    _matching(
        _IMAGE,
        "an image is written REPOSITORY:TAG or REPOSITORY@sha256:…, with lower-case letters in the repository, as "
        "in registry.example.com/team/shardline:1",
        500,
    ),
]

EnvName = Annotated[
    str,
    _matching(
        r"[A-Za-z_][A-Za-z0-9_]*",
        "a variable has letters, digits and '_', and does not begin with a digit",
    ),
]

EnvValue = Annotated[str, _matching(r"[^\0]*", "a variable cannot hold the character of code 0", 2**17)]

SecretKey = Annotated[
    str,
    _matching(
        rf"{_SUBDOMAIN}/[-._a-zA-Z0-9]+",
        "name the secret and the key in it as SECRET/KEY, such as hugging-face/token; the value itself stays in "
        "the secret",
        507,
    ),
]

LabelValue = Annotated[
    str,
    _matching(
        rf"({_LABEL_NAME})?",
        "a label's value has at most 63 letters, digits, '-', '_' and '.', and begins and ends with a letter or "
        "digit",
        63,
    ),
]

Endpoint = Annotated[
    str,
    _matching(
        r"[A-Za-z0-9.-]+:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])",
        "write it as HOST:PORT, without http://, such as etcd.default:2379",
    ),
]


def check_key(key: str) -> str:
    """Check the key of a label, an annotation or a taint.

    Raises:
        PydanticCustomError: It is none.
    """
    prefix, _, name = key.rpartition("/")
    if len(prefix) > 253 or len(name) > 63 or not re.fullmatch(_QUALIFIED, key):
        raise broken(
            "a key is a name of at most 63 letters, digits, '-', '_' and '.', or such a name after a domain and a "
            "slash, as in example.com/team"
        )
    return key


LabelKey = Annotated[str, AfterValidator(check_key)]


def _check_resource(name: str) -> str:
    if not re.fullmatch(_NATIVE, name) and "/" not in check_key(name):
        raise broken(
            "a resource is cpu, memory, ephemeral-storage, hugepages-2Mi or the like, or has a domain before its "
            "name, as in nvidia.com/gpu"
        )
    return name


ResourceName = Annotated[str, AfterValidator(_check_resource)]


def _check_quantity(text: str) -> str:
    if not re.fullmatch(_QUANTITY, text):
        raise broken(
            "an amount is a number, with one of the units m, k, M, G, T, P, Ki, Mi, Gi, Ti, Pi right behind it "
            "where it needs one, such as 48, 1.5 or 512Gi"
        )
    return text


# YAML makes a number of 48, and Kubernetes takes both.
Quantity = Annotated[
    str,
    BeforeValidator(
        lambda given: str(given) if isinstance(given, int | float) and not isinstance(given, bool) else given
    ),
    AfterValidator(_check_quantity),
]


def _check_memory(text: str) -> str:
    if not re.search(r"[MGTP]i?$", text) and float(text.rstrip("mkKi")) < 2**20:
        raise broken("without a unit these are bytes, too few for anything: write it as in 64Gi")
    return text


Memory = Annotated[Quantity, AfterValidator(_check_memory)]


def _check_whole(resources: dict[str, str]) -> dict[str, str]:
    if parts := [name for name, amount in resources.items() if "/" in name and not amount.isdigit()]:
        raise broken(f"of {', '.join(parts)} there are whole numbers only")
    return resources


Resources = Annotated[dict[ResourceName, Quantity], AfterValidator(_check_whole)]


def _unreserved(kind: str) -> Callable[[dict[str, str]], dict[str, str]]:
    def check(given: dict[str, str]) -> dict[str, str]:
        if taken := [key for key in given if re.fullmatch(_RESERVED, key)]:
            raise broken(f"the {kind} {', '.join(taken)} cannot be set: Shardline or the operator sets them")
        return given

    return check


_RESERVED = r"shardline\.dev/.*|training\.kubeflow\.org/.*"

Labels = Annotated[dict[LabelKey, LabelValue], AfterValidator(_unreserved("labels"))]
Annotations = Annotated[dict[LabelKey, str], AfterValidator(_unreserved("annotations"))]
