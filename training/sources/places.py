"""Which files a name stands for: on disk, and in S3."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from training.errors import UserError
from training.s3 import SCHEME, list_objects
from training.sources.file import File, LocalFile, S3File
from training.sources.folder import Chosen, choose
from training.sources.kinds import is_data
from training.user_path import user_path

_PROJECT = Path(__file__).resolve().parents[2]


def find_files(name: str, split: str) -> Chosen | None:
    """The files of a path, a folder, a glob or an `s3://` address; None where there are none.

    Relative paths start at the working folder, or else at the project, so that its own data is found.

    Args:
        name: As the user wrote it.
        split: Chosen from a folder of several splits.

    Raises:
        UserError: A folder has no data or not the split, a path is of what is no file, an address is of another
            kind, or the path or S3 cannot be looked at.
    """
    if name.startswith(SCHEME):
        return _in_s3(name, split)
    if "://" in name:
        raise UserError(
            f"'{name}' is an address of a kind that is not read: copy the data to a disk or to {SCHEME}"
        )
    path = local_path(name)
    if path is None:
        return _globbed(name) if _is_glob(name) else None
    if path.is_dir():
        files = {part: LocalFile(path / part, f"{name.rstrip('/')}/{part}") for part in _inside(path)}
        return choose(name, files, split)
    if not path.is_file():
        raise UserError(f"'{name}' is neither a file nor a folder (a pipe or a device?): save the data as a file")
    return Chosen([LocalFile(path, name)], None)


def local_path(name: str) -> Path | None:
    """The file or folder that a path leads to; None if there is none."""
    paths = (user_path(name, place) for place in _places(name))
    return next((path for path in paths if path.exists()), None)


def where_looked(name: str) -> str:
    """The folders in which a relative path was looked for, for people; empty for another."""
    if name.startswith(SCHEME) or user_path(name).is_absolute():
        return ""
    return f" in {' nor in '.join(str(place) for place in _places(name))}"


def _places(name: str) -> list[Path]:
    here = Path.cwd()
    if user_path(name).is_absolute() or here == _PROJECT:
        return [here]
    return [here, _PROJECT]


def _in_s3(name: str, split: str) -> Chosen | None:
    objects = {found.path: S3File(found) for found in list_objects(name)}
    path = name.removeprefix(SCHEME)
    if path in objects:
        return Chosen([objects[path]], None)
    if _is_glob(name):
        files: list[File] = [file for part, file in objects.items() if is_data(PurePosixPath(part).name)]
        return Chosen(files, None) if files else None
    start = len(path.rstrip("/")) + 1
    inside = {part[start:]: file for part, file in objects.items() if len(part) > start}
    return choose(name, inside, split) if inside else None


def _globbed(name: str) -> Chosen | None:
    for place in _places(name):
        # Unlike Path.glob it takes a pattern that begins at the root too.
        found = glob.glob(str(user_path(name)), root_dir=place, recursive=True)  # noqa: PTH207
        files = [part for part in sorted(found) if is_data(PurePosixPath(part).name) and _is_file(place / part)]
        if files:
            return Chosen([LocalFile(place / part, part) for part in files], None)
    return None


def _inside(folder: Path) -> Iterator[str]:
    """What may be data below a folder, through links too; a folder that may not be read is an error, not empty."""

    def fail(error: OSError) -> None:
        raise UserError(f"'{error.filename}' cannot be looked at ({error.strerror}): change its permissions")

    seen = set()
    for place, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        seen.add(os.path.realpath(place))
        folders[:] = sorted(part for part in folders if os.path.realpath(Path(place, part)) not in seen)
        for path in (Path(place, part) for part in names if is_data(part)):
            if _is_file(path):
                yield path.relative_to(folder).as_posix()


def _is_file(path: Path) -> bool:
    if path.is_symlink() and not path.exists():
        raise UserError(f"'{path}' is a link that leads nowhere: fetch what it stands for, or remove it")
    return path.is_file()


def _is_glob(name: str) -> bool:
    return glob.has_magic(name)
