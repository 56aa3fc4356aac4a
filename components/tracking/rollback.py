"""Give an alias back to a version that held it before."""

import getpass
import os
import time
from dataclasses import dataclass
from typing import Any

from components.tracking.artifacts import list_files
from components.tracking.connection import Connection
from components.tracking.history import move_alias, previous_holder
from components.tracking.model_files import wanted_files
from components.tracking.registry import alias_holder, find_model, get_version
from components.tracking.texts import shortened
from components.tracking.turn import turn
from training.errors import UserError


@dataclass(frozen=True)
class Rollback:
    """What was done.

    Attributes:
        name: Name of the registered model.
        alias: The alias that moved.
        before: The version that held it; None if none did.
        after: The version that holds it.
    """

    name: str
    alias: str
    before: str | None
    after: str


def roll_back(connection: Connection, name: str, alias: str, to: str | None, reason: str) -> Rollback:
    """Move an alias back.

    Args:
        connection: To MLflow.
        name: Name of the registered model.
        alias: The alias.
        to: The version that shall hold it. None: the one that held it before.
        reason: Why, for those who look at the versions later; may be empty.

    Raises:
        UserError: There is no such model or version, none held the alias before, or the version's files are gone.
    """
    client = connection.client
    if find_model(client, name) is None:
        raise UserError(
            f"there is no registered model '{name}' at {connection.uri}: give the name, the store or the tracking "
            "URI that it was registered with"
        )
    with turn(client, name):
        before = alias_holder(client, name, alias)
        after = to or previous_holder(client, name, alias)
        if after is None:
            raise UserError(
                f"no version of '{name}' held the alias {alias} before "
                f"{'now' if before is None else f'version {before}'}: name one with --to; `shardline versions` "
                "lists them"
            )
        if after == before:
            raise UserError(f"version {after} of '{name}' holds the alias {alias} already: name another with --to")
        _check(connection, name, after)
        move_alias(client, name, alias, after)
        _record(client, name, before, after, reason)
    return Rollback(name, alias, before, after)


def _check(connection: Connection, name: str, number: str) -> None:
    version = get_version(connection.client, name, number)
    if version is None:
        raise UserError(f"'{name}' has no version {number}: `shardline versions` lists those that there are")
    if not wanted_files(list_files(connection, version)):
        raise UserError(
            f"the model of version {number} of '{name}' is gone from {version.source}: name another version with "
            "--to"
        )


def _record(client: Any, name: str, before: str | None, after: str, reason: str) -> None:
    who = {
        "by": _who(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "reason": shortened(reason),
    }
    for key, value in who.items():
        if before is not None:
            client.set_model_version_tag(name, before, f"shardline.rolled_back_{key}", value)
        client.set_model_version_tag(name, after, f"shardline.restored_{key}", value)
    if before is not None:
        client.set_model_version_tag(name, before, "shardline.rolled_back_to", after)
    client.set_model_version_tag(name, after, "shardline.restored_from", before or "")


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"  # a container's user need not have a name
