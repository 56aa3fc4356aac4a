"""The store: content-addressed folders that are either whole or absent.

A folder is written in staging, sealed with a manifest of checksums, flushed to disk and renamed into place. A
rename is atomic, so a reader sees all of it or nothing, and of two processes that publish the same fingerprint
at once the second finds the first's work and drops its own.

    <root>/<kind>/<fingerprint>/          published
    <root>/.staging/<kind>-<fingerprint>.<host>.<pid>.<random>/   being written
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from training.errors import UserError

MANIFEST = "manifest.json"
STAGING = ".staging"

_ABANDONED_S = 24 * 3600
"""Age after which staging of another host counts as abandoned; a host's own is judged by its process."""

_CLOCK_SLACK_S = 600
"""How far the clock of a file server may be off."""


class Store:
    """Published folders below one root: a local folder, or a volume that all pods mount.

    Args:
        root: Where the store lives; created when it is missing.

    Raises:
        UserError: The root cannot be created or written to.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).expanduser().absolute()
        with disk_errors(self.root):
            (self.root / STAGING).mkdir(parents=True, exist_ok=True)

    def path(self, kind: str, key: str) -> Path:
        """Where `key` of `kind` is, or would be, published."""
        _check_name(kind)
        _check_name(key)
        return self.root / kind / key

    def get(self, kind: str, key: str) -> Path | None:
        """The published folder, or None where there is none that is whole, so that it is made (again)."""
        path = self.path(kind, key)
        return path if is_whole(path) else None

    @contextlib.contextmanager
    def publish(self, kind: str, key: str, about: Mapping[str, Any]) -> Iterator[Path]:
        """Write a folder and publish it when the block ends; an exception publishes nothing.

        Args:
            kind: Family, for example `models`.
            key: Fingerprint of the content.
            about: What the manifest records besides the checksums.

        Yields:
            The empty staging folder to write into.

        Raises:
            UserError: The disk is full, or the store may not be written to.
        """
        target = self.path(kind, key)
        with disk_errors(self.root):
            prefix = f"{kind}-{key}.{_host()}.{os.getpid()}."
            staging = Path(tempfile.mkdtemp(prefix=prefix, dir=self.root / STAGING))
            staging.chmod(0o755)
            try:
                yield staging
                seal(staging, about)
                rename_into_place(staging, target)
            finally:
                shutil.rmtree(staging, ignore_errors=True)

    def sweep(self) -> list[Path]:
        """Remove staging that its writer left behind, and return what was removed."""
        abandoned = [folder for folder in (self.root / STAGING).iterdir() if _is_abandoned(folder)]
        for folder in abandoned:
            shutil.rmtree(folder, ignore_errors=True)
        return [folder for folder in abandoned if not folder.exists()]


def fingerprint(**parts: Any) -> str:
    """Name content by what it is made from: 16 hex digits of SHA-256 over the parts as canonical JSON."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def checksum(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(folder: Path, about: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Write the manifest (sizes and checksums of all files) and flush the whole folder to disk.

    Args:
        folder: With all its files.
        about: What the manifest records besides.
        known: Entries of files whose checksums were taken when they were written, by name; those are not read.

    Raises:
        OSError: A file that is known is missing, or has another size than was written.
    """
    manifest = folder / MANIFEST
    entries = {name: dict(entry) for name, entry in (known or {}).items()}
    for name, entry in entries.items():
        # By name: another host's new file may not be in a network disk's list of the folder yet.
        if (num_bytes := (folder / name).stat().st_size) != entry["bytes"]:
            raise OSError(f"{folder / name} has {num_bytes} bytes, but {entry['bytes']} were written")
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_file() and path != manifest and name not in entries:
            entries[name] = {"bytes": path.stat().st_size, "sha256": checksum(path)}
    files = {name: entries[name] for name in sorted(entries)}
    content = json.dumps({"about": dict(about), "files": files}, indent=1, ensure_ascii=False)
    manifest.write_text(content, encoding="utf-8")
    for path in [*(folder / name for name in files), manifest]:
        _fsync(path)
    for path in [*(p for p in folder.rglob("*") if p.is_dir()), folder]:
        _fsync(path)


def about(folder: Path) -> dict[str, Any]:
    """What the manifest of a published folder records."""
    content: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["about"]
    return content


def is_whole(folder: Path) -> bool:
    """Whether a folder was published and has all files of its manifest, by name and size.

    Cheap, as it reads no contents but the manifest's; see `verify` for checksums.
    """
    try:
        entries = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return all(
            (folder / name).is_file() and (folder / name).stat().st_size == entry["bytes"]
            for name, entry in entries.items()
        )
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return False  # no manifest, or not what `seal` wrote


def verify(folder: Path) -> list[str]:
    """Compare a published folder with its manifest; returns the names of files that are missing or differ."""
    entries = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    return [
        name
        for name, entry in entries.items()
        if not (folder / name).is_file()
        or (folder / name).stat().st_size != entry["bytes"]
        or checksum(folder / name) != entry["sha256"]
    ]


def rename_into_place(staging: Path, target: Path) -> None:
    """Move a sealed folder to its name; if another process was first, its equal folder stays.

    A folder there that is not whole makes way.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    while not _rename(staging, target) and not is_whole(target):
        _clear_remains(staging, target)
    _fsync(target.parent)


def remove(folder: Path) -> None:
    """Remove a published folder; a removal that is killed half-way leaves nothing that looks published."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def write_atomically(path: Path, text: str) -> None:
    """Replace a small file so that a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    """Turn "no space" and "no permission" into one sentence that names the store and the remedy.

    An error that is not about the store passes through.
    """
    try:
        yield
    except Exception as error:
        sentence = disk_problem(error, root)
        if sentence is None:
            raise
        raise UserError(sentence) from error


def disk_problem(error: Exception, root: Path) -> str | None:
    """The sentence for a full disk, a missing permission or a file in the way; None if it is none of these."""
    if not isinstance(error, OSError):
        # safetensors, like others, wraps the system's error in one of its own.
        return _full(root) if os.strerror(errno.ENOSPC) in str(error) else None
    if not _is_about(error, root):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return _full(root)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"no permission to write {error.filename or root}: make the store {root} writable for this user, or "
            "choose another store"
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        wanted = Path(error.filename2 or error.filename)
        for path in (wanted, *wanted.parents):
            if path.is_file():
                return f"the store {root} needs a folder where there is a file: move {path} away"
    return None


def _full(root: Path) -> str:
    return (
        f"the disk of the store {root} is full: free some space (unfinished work is removed by itself) or choose "
        "another store"
    )


def _is_about(error: OSError, root: Path) -> bool:
    # A failed write names no file, and a failed mkdir may name a parent of the root.
    if not isinstance(error.filename, str):
        return error.filename is None
    path = Path(error.filename)
    return path == root or root in path.parents or path in root.parents


def _rename(folder: Path, target: Path) -> bool:
    """Move a folder to a free name; False if the name is taken."""
    try:
        folder.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _clear_remains(staging: Path, target: Path) -> None:
    """Remove a folder that is not whole: a removal that was killed left it, or it was damaged."""
    remains = staging.with_name(f"{staging.name}-remains")
    with contextlib.suppress(FileNotFoundError):  # another process was first
        target.rename(remains)
        if is_whole(remains):  # another process has published since we looked
            _rename(remains, target)
        shutil.rmtree(remains, ignore_errors=True)


def _host() -> str:
    return socket.gethostname().replace(".", "-")


def _is_abandoned(folder: Path) -> bool:
    try:
        _, host, number, _ = folder.name.rsplit(".", 3)
        pid = int(number)
        newest = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
        if host != _host():
            return time.time() - newest > _ABANDONED_S
        writer = psutil.Process(pid)
        # A zombie writes no more, and a process that began after the last write is another of the same number.
        return writer.status() == psutil.STATUS_ZOMBIE or writer.create_time() - newest > _CLOCK_SLACK_S
    except psutil.NoSuchProcess:
        return True
    except (ValueError, OSError):
        return False  # no name of ours, or just gone


def _check_name(name: str) -> None:
    # Names become paths, and some come from users.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UserError(
            f"{name!r} cannot be a name in the store: use letters, digits, '.', '_' and '-', "
            "starting with a letter or digit"
        )


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
