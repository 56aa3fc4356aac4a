"""Which files a name stands for: on disk, and in S3."""

import glob
from pathlib import Path, PurePosixPath

from training.errors import UserError
from training.s3 import SCHEME, list_objects
from training.sources.file import File, LocalFile, S3File
from training.sources.folder import Chosen, choose
from training.sources.kinds import is_data

_PROJECT = Path(__file__).resolve().parents[2]


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


def _is_glob(name: str) -> bool:
    return glob.has_magic(name)
