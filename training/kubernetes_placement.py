"""What Kubernetes accepts of tolerations and affinities, as far as it can be told without a cluster."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from training.kubernetes_rules import broken, check_key


def _check_plain(content: Any) -> Any:
    """Refuse what JSON cannot hold: dates, numbers that are none, and content that holds itself."""
    try:
        json.dumps(content, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise broken("there may be texts, numbers, true, false, lists and maps in it; quote dates") from None
    return content


def _only_keys(content: Mapping[str, Any], known: Mapping[str, type | tuple[str, ...]]) -> None:
    for key, value in content.items():
        kind = known.get(key)
        if kind is None:
            raise broken(f"'{key}' is not known there: use {', '.join(known)}")
        if isinstance(kind, tuple) and value not in kind:
            raise broken(f"{key} is one of {', '.join(kind)}")
        if isinstance(kind, type) and (not isinstance(value, kind) or isinstance(value, bool)):
            raise broken(f"{key} is a {_WORDS[kind]}")


_WORDS: dict[type, str] = {str: "text (put it in quotes)", int: "whole number", dict: "map"}


def _check_toleration(toleration: dict[str, Any]) -> dict[str, Any]:
    _only_keys(
        _check_plain(toleration),
        {
            "key": str,
            "operator": ("Exists", "Equal"),
            "value": str,
            "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute"),
            "tolerationSeconds": int,
        },
    )
    exists = toleration.get("operator") == "Exists"
    if not exists and not toleration.get("key"):
        raise broken("without a key, which means every taint, operator has to be Exists")
    if exists and toleration.get("value"):
        raise broken("with operator Exists there is no value")
    if "tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute":
        raise broken("tolerationSeconds has a meaning only with effect NoExecute")
    if toleration.get("key"):
        check_key(toleration["key"])
    return toleration


Toleration = Annotated[dict[str, Any], AfterValidator(_check_toleration)]


def _check_affinity(affinity: dict[str, Any]) -> dict[str, Any]:
    _only_keys(_check_plain(affinity), {"nodeAffinity": dict, "podAffinity": dict, "podAntiAffinity": dict})
    return affinity


Affinity = Annotated[dict[str, Any], AfterValidator(_check_affinity)]
