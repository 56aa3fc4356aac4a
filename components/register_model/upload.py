"""Where a version's model lies: in the store, or copied to MLflow's artifact store."""

import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from components.tracking.connection import Connection
from training.config import RegistryConfig
from training.errors import UserError

PATH = "model"
"""Where the model lies among the run's artifacts."""

_PROGRESS_EVERY_S = 30.0


def is_reference(connection: Connection, settings: RegistryConfig) -> bool:
    """Whether the version points into the store."""
    if settings.artifact == "auto":
        return not connection.is_server
    return settings.artifact == "reference"


def place_of_reference(connection: Connection, run: Any, folder: Path) -> Path:
    """Where the MLmodel folder of a version by reference has to lie.

    A database takes any place. A server takes only what lies among the run's artifacts, which it can do by
    reference if these are a folder on a disk that is mounted here as there.

    Args:
        connection: To MLflow.
        run: The MLflow run.
        folder: Where it lies if that can be chosen.

    Raises:
        UserError: The server keeps artifacts elsewhere.
    """
    if not connection.is_server:
        return folder
    parts = urlsplit(run.info.artifact_uri)
    artifacts = Path(unquote(parts.path))
    if parts.scheme not in ("", "file") or not artifacts.is_absolute():
        raise UserError(
            f"registry.artifact is reference, but the MLflow server {connection.uri} takes only models that lie "
            f"in its own artifact store ({run.info.artifact_uri}): set registry.artifact to copy (or auto), or "
            "let the server keep the experiment's artifacts in a folder of the store"
        )
    return artifacts / PATH


def upload(connection: Connection, run: Any, folder: Path, note: Callable[[str], None]) -> str:
    """Copy the MLmodel folder to the run's artifacts; what an earlier try copied whole is left out.

    Args:
        connection: To MLflow.
        run: The MLflow run.
        folder: What is copied.
        note: Takes a line for people, now and then.

    Returns:
        Its address, as the source of a model version.
    """
    client, run_id = connection.client, run.info.run_id
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    there = _there(client, run_id, PATH)
    # The card has no size of its own: it may say something else at the same length.
    missing = [name for name, size in sizes.items() if there.get(name) != size or name.endswith(".md")]
    # MLmodel last, which makes it a model; before it the small ones, so that what is wrong is found early.
    missing.sort(key=lambda name: (name == "MLmodel", sizes[name], name))
    total, done, told = sum(sizes[name] for name in missing), 0, time.monotonic()
    if any(name.endswith(".safetensors") for name in missing):
        note(f"copying the tuned model, {total / 1e9:.2f} GB, to the MLflow server {connection.uri} …")
    if skipped := len(sizes) - len(missing):
        note(f"{skipped} of {len(sizes)} files of the model are at {connection.uri} already")
    for name in missing:
        client.log_artifact(run_id, str(folder / name), str((PurePosixPath(PATH) / name).parent))
        done += sizes[name]
        if time.monotonic() - told > _PROGRESS_EVERY_S:
            told = time.monotonic()
            note(f"{done / 1e9:.1f} of {total / 1e9:.1f} GB")
    return f"runs:/{run_id}/{PATH}"


def _there(client: Any, run_id: str, path: str) -> dict[str, int]:
    """Files below an artifact path, by their names in it, with their sizes."""
    found: dict[str, int] = {}
    for entry in client.list_artifacts(run_id, path):
        if entry.is_dir:
            found |= {
                f"{entry.path.rpartition('/')[2]}/{name}": size
                for name, size in _there(client, run_id, entry.path).items()
            }
        else:
            found[entry.path.rpartition("/")[2]] = entry.file_size or 0
    return found
