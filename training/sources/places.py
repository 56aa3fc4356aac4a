"""Which files a name stands for: on disk, and in S3."""

import glob
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from training.errors import UserError
from training.s3 import SCHEME, S3Object, list_objects
from training.sources.checksums import known_checksum
from training.sources.kinds import SUPPORTED, is_data, split_name

_PROJECT = Path(__file__).resolve().parents[2]


class File(Protocol):
    """A file to read rows from."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    @property
    def pin(self) -> str:
        """What changes with its content."""
        ...

    def open(self) -> BufferedReader:
        """Open it for reading."""
        ...


@dataclass(frozen=True)
class LocalFile:
    """A file on disk."""

    path: Path
    name: str

    @property
    def size(self) -> int:
        """Bytes."""
        return self.path.stat().st_size

    @cached_property
    def pin(self) -> str:
        """Its SHA-256."""
        return f"sha256:{known_checksum(self.path)}"

    def open(self) -> BufferedReader:
        """Open it for reading."""
        return self.path.open("rb")


@dataclass(frozen=True)
class S3File:
    """An object in S3."""

    object: S3Object

    @property
    def name(self) -> str:
        """Its address."""
        return self.object.address

    @property
    def size(self) -> int:
        """Bytes."""
        return self.object.size

    @property
    def pin(self) -> str:
        """ETag and size. An object that was copied in parts may have another ETag than its like."""
        return f"etag:{self.object.etag}-{self.object.size}"

    def open(self) -> BufferedReader:
        """Open it for reading, over a connection that is mended when it breaks."""
        return self.object.open(is_scattered=split_name(self.name) == ("parquet", None))


def find_files(name: str, split: str | None) -> list[File] | None:
    """The files of a path, a folder, a glob or an `s3://` address, in their order; None where there are none.

    Relative paths start at the working folder, or else at the project, so that its own data is found.

    Args:
        name: As the user wrote it.
        split: Chosen from a folder of splits that `datasets` saved.

    Raises:
        UserError: A folder has no data, or S3 cannot be looked at.
    """
    if name.startswith(SCHEME):
        objects = list_objects(name)
        if len(objects) == 1 and SCHEME + objects[0].path == name:
            return [S3File(objects[0])]
        if _is_glob(name):
            return [S3File(found) for found in objects if is_data(PurePosixPath(found.path).name)] or None
        start = len(name.removeprefix(SCHEME).rstrip("/")) + 1
        return _chosen(name, {found.path[start:]: S3File(found) for found in objects}, split) if objects else None
    wanted = Path(name).expanduser()
    path = next((place / wanted for place in _places(name) if (place / wanted).exists()), None)
    if path is None and _is_glob(name):
        return _globbed(name)
    if path is None:
        return None
    if not path.is_dir():
        return [LocalFile(path, name)]
    inside = (found.relative_to(path).as_posix() for found in path.rglob("*") if found.is_file())
    return _chosen(name, {part: LocalFile(path / part, f"{name.rstrip('/')}/{part}") for part in inside}, split)


def where_looked(name: str) -> str:
    """The folders in which a relative path was looked for, for people; empty for another."""
    if name.startswith(SCHEME) or Path(name).expanduser().is_absolute():
        return ""
    return f" in {' nor in '.join(str(place) for place in _places(name))}"


def _places(name: str) -> list[Path]:
    here = Path.cwd()
    if Path(name).expanduser().is_absolute() or here == _PROJECT:
        return [here]
    return [here, _PROJECT]


def _globbed(name: str) -> list[File] | None:
    for place in _places(name):
        # Unlike Path.glob it takes a pattern that begins at the root too.
        found = glob.glob(str(Path(name).expanduser()), root_dir=place, recursive=True)  # noqa: PTH207
        files = [part for part in sorted(found) if (place / part).is_file() and is_data(PurePosixPath(part).name)]
        if files:
            return [LocalFile(place / part, part) for part in files]
    return None


def _chosen(name: str, files: Mapping[str, File], split: str | None) -> list[File]:
    """What of a folder is data.

    Args:
        name: Of the folder.
        files: By their paths in it.
        split: As of `find_files`.
    """
    if "dataset_dict.json" in files:
        splits = _read(files["dataset_dict.json"])["splits"]
        if split not in splits:
            raise UserError(f"'{name}' has no split '{split}': choose one of {', '.join(splits)}")
        files = {
            part.removeprefix(f"{split}/"): file for part, file in files.items() if part.startswith(f"{split}/")
        }
    if "state.json" in files:
        # A folder that `datasets` saved may hold results of its cache too.
        parts = [entry["filename"] for entry in _read(files["state.json"])["_data_files"]]
        missing = [part for part in parts if part not in files]
        if missing:
            raise UserError(
                f"'{name}' is not whole: state.json names {missing[0]}, which is missing. Save it again"
            )
        return [files[part] for part in parts]
    found = [file for part, file in sorted(files.items()) if is_data(part)]
    if not found:
        raise UserError(f"'{name}' is a folder without data: put files into it ({SUPPORTED})")
    return found


def _read(file: File) -> Any:
    with file.open() as stream:
        return json.load(stream)


def _is_glob(name: str) -> bool:
    return glob.has_magic(name)
