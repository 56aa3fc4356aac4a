"""Which versions held an alias, so that a rollback knows the one before."""

import json
import time
from typing import Any

from components.tracking.registry import alias_holder, get_version

_LENGTH = 50
"""Versions that are remembered; a tag of MLflow holds 5000 characters."""


def move_alias(client: Any, name: str, alias: str, version: str) -> None:
    """Give an alias to a version, and remember who held it before. Call it in one's turn, see `turn`.

    A version that held the alias before goes back to its place: those that came after it are forgotten.
    """
    before, holder = held_by(client, name, alias), alias_holder(client, name, alias)
    if holder is not None and holder not in before:
        before.append(holder)  # set by hand, or by an earlier Shardline
    if holder in before:
        before = before[: before.index(holder) + 1]
    after = [*(before[: before.index(version)] if version in before else before), version]
    client.set_registered_model_tag(name, _key(alias), json.dumps(after[-_LENGTH:]))
    client.set_registered_model_alias(name, alias, version)
    moved = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    client.set_model_version_tag(name, version, f"shardline.{alias}_since", moved)


def held_by(client: Any, name: str, alias: str) -> list[str]:
    """Versions that held an alias, oldest first, the holder last."""
    text = client.get_registered_model(name).tags.get(_key(alias), "[]")
    try:
        found = json.loads(text)
    except ValueError:
        return []  # edited by hand
    return [str(version) for version in found] if isinstance(found, list) else []


def previous_holder(client: Any, name: str, alias: str) -> str | None:
    """The last version that held an alias before its holder and is still there; None if none is known."""
    versions, holder = held_by(client, name, alias), alias_holder(client, name, alias)
    if holder in versions:
        versions = versions[: versions.index(holder)]
    return next((each for each in reversed(versions) if get_version(client, name, each) is not None), None)


def _key(alias: str) -> str:
    return f"shardline.held_by.{alias}"
