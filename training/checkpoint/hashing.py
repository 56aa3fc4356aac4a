"""Files whose checksum is taken of what is written, not of what a disk made of it."""

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from torch.distributed.checkpoint.filesystem import FileSystem


class HashingStream(io.IOBase):
    """Hashes what is written, and passes it on.

    Args:
        raw: Open for writing, at its beginning.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._hash = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Write all of it."""
        self._hash.update(data)
        return int(self._raw.write(data))

    def tell(self) -> int:
        """Bytes so far."""
        return int(self._raw.tell())

    def flush(self) -> None:
        """To the system."""
        if not self._raw.closed:
            self._raw.flush()

    def fileno(self) -> int:
        """The file's."""
        return int(self._raw.fileno())

    def entry(self) -> dict[str, Any]:
        """What a manifest says of the file."""
        return {"bytes": self.tell(), "sha256": self._hash.hexdigest()}


@contextlib.contextmanager
def hashed_file(path: Path, entries: dict[str, dict[str, Any]]) -> Iterator[HashingStream]:
    """Write a file and flush it to the disk; its entry is added when the block ends.

    Args:
        path: The file.
        entries: By name.
    """
    with path.open("wb") as raw:
        stream = HashingStream(raw)
        yield stream
        raw.flush()
        os.fsync(raw.fileno())
        entries[path.name] = stream.entry()


class HashingFiles(FileSystem):
    """The file system that torch.distributed.checkpoint writes to.

    Attributes:
        entries: What a manifest says of each file that was written, by name.
    """

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file."""
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        with hashed_file(Path(path), self.entries) as hashing:
            yield cast(io.IOBase, hashing)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Rename a file."""
        super().rename(path, new_path)
        self.entries[Path(new_path).name] = self.entries.pop(Path(path).name)
