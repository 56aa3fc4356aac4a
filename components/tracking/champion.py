"""The champion: the version that holds the run's alias, as a folder that can be loaded."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.tracking.artifacts import download, folder_of_source, list_files
from components.tracking.connection import Connection, connect, has_registry
from components.tracking.model_files import inner_folder, wanted_files
from components.tracking.registry import alias_holder, find_model
from training.adapter_folder import has_model, is_adapter
from training.config import RunConfig
from training.errors import UserError
from training.run_folder import RunFolder
from training.store import Store, fingerprint


@dataclass(frozen=True)
class Champion:
    """The version that holds the alias.

    Attributes:
        version: Its number in the registry.
        folder: Its model: safetensors, config and tokenizer, or an adapter.
        base_folder: The base model in the store, if it is an adapter.
        run: Name of the run that made it; empty if no run of Shardline did.
        run_id: Mark of that run's folder, see `RunFolder.identity`; empty if it is not known.
        loss: Its held-out loss when it was registered, in nats per supervised token; None if it is not known.
        heldout_fingerprint: The held-out rows that it was taken on; None if they are not known.
    """

    version: str
    folder: Path
    base_folder: Path | None
    run: str
    run_id: str
    loss: float | None
    heldout_fingerprint: str | None

    def is_of(self, folder: RunFolder) -> bool:
        """Whether the run of this folder made it."""
        return self.run == folder.run and self.run_id in ("", folder.identity())


def champion_of(config: RunConfig, store_root: Path, note: Callable[[str], None]) -> Champion | None:
    """Find the version that holds `registry.alias`, and have its model at hand.

    A version by reference is used where it lies; a copy is downloaded once into `<store>/models/champion-…`, of
    which only safetensors, tokenizer and configuration are taken.

    Args:
        config: The run's.
        store_root: The store.
        note: Takes a line for people.

    Returns:
        None if no version holds the alias, or nothing was ever registered.

    Raises:
        UserError: MLflow cannot be reached or used, or the version's model, or the base model of an adapter, is
            gone.
    """
    settings = config.registry
    if not has_registry(settings.tracking_uri, store_root):
        return None
    with connect(settings.tracking_uri, store_root, note) as connection:
        if find_model(connection.client, settings.model_name) is None:
            return None
        holder = alias_holder(connection.client, settings.model_name, settings.alias)
        if holder is None:
            return None
        version = connection.client.get_model_version(settings.model_name, holder)
        who = f"version {holder} of '{settings.model_name}', which holds the alias {settings.alias},"
        folder = _folder(connection, version, Store(store_root), who, note)
    tags = version.tags
    return Champion(
        version=holder,
        folder=folder,
        base_folder=_base(folder, tags, Store(store_root), who),
        run=tags.get("shardline.run", ""),
        run_id=tags.get("shardline.run_id", ""),
        loss=_number(tags.get("heldout_loss")),
        heldout_fingerprint=tags.get("heldout_fingerprint"),
    )


def _folder(connection: Connection, version: Any, store: Store, who: str, note: Callable[[str], None]) -> Path:
    folder = folder_of_source(version)
    if folder is not None:
        inner = inner_folder(folder)
        if not has_model(inner):
            raise UserError(f"{who} lies in {folder}, where there is no model any more: {_REMEDY}")
        return inner
    key = f"champion-{fingerprint(uri=connection.uri, name=version.name, version=str(version.version))}"
    if (found := store.get("models", key)) is not None:
        return found
    files = wanted_files(list_files(connection, version))
    if not files:
        raise UserError(f"{who} has no model at {version.source} any more: {_REMEDY}")
    size = sum(files.values())
    note(f"downloading the {version.name} version {version.version}, {size / 1e9:.2f} GB, to compare with it")
    facts = {"source": f"models:/{version.name}/{version.version}", "tracking_uri": connection.uri}
    with store.publish("models", key, facts) as staging:
        for path in files:
            download(connection, version, path, staging)
    return store.path("models", key)


_REMEDY = "give the alias to another version with `shardline rollback`, or set evaluation.champion to false"


def _base(folder: Path, tags: dict[str, str], store: Store, who: str) -> Path | None:
    if not is_adapter(folder):
        return None
    key = tags.get("shardline.model_fingerprint")
    base = store.get("models", key) if key else None
    if base is None:
        name = tags.get("shardline.model", "a base model that is not known")
        revision = f" at {tags['shardline.model_revision']}" if tags.get("shardline.model_revision") else ""
        raise UserError(
            f"{who} is an adapter for {name}{revision}, which is not in the store {store.root}: run the step "
            "download_model with that model in this store, or set evaluation.champion to false"
        )
    return base


def _number(text: str | None) -> float | None:
    # Tags can be edited by hand.
    try:
        number = float(text or "nan")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
