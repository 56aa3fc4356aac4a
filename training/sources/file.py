"""Files to read rows from: on disk, and in S3."""

from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Protocol

from training.s3 import S3Object
from training.sources.checksums import known_checksum
from training.sources.kinds import split_name


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
