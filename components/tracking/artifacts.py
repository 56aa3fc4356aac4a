"""The files of a model version, wherever they lie."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from components.tracking.connection import Connection


def folder_of_source(version: Any) -> Path | None:
    """The folder that a version points to, if it is registered by reference."""
    parts = urlsplit(version.source)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(version.source) if version.source.startswith("/") else None


def list_files(connection: Connection, version: Any) -> dict[str, int]:
    """Paths and sizes in bytes of all files of a version; empty if they are gone."""
    return dict(_walk(connection, version, ""))


def download(connection: Connection, version: Any, path: str, folder: Path) -> None:
    """Fetch one file of a version into a folder, by its name alone."""
    # MLflow makes the folders that the file lies in; on the same volume, so that it can be moved.
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder.parent) as place:
        found = _repository(connection, version).download_artifacts(path, dst_path=place)
        shutil.move(found, folder / Path(path).name)


def _walk(connection: Connection, version: Any, path: str) -> Iterator[tuple[str, int]]:
    for entry in _repository(connection, version).list_artifacts(path or None):
        if entry.is_dir:
            yield from _walk(connection, version, entry.path)
        else:
            yield entry.path, entry.file_size or 0


def _repository(connection: Connection, version: Any) -> Any:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(version.source, tracking_uri=connection.uri, registry_uri=connection.uri)
