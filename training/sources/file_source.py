"""Rows of files."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from io import BufferedReader

from training.errors import UserError
from training.s3 import SCHEME, s3_errors
from training.sources.delimited import delimited_blocks
from training.sources.file import File
from training.sources.json_file import json_blocks
from training.sources.kinds import Kind, split_name
from training.sources.lines import line_blocks
from training.sources.paragraphs import paragraph_blocks
from training.sources.rows import Block
from training.sources.tables import arrow_blocks, parquet_blocks
from training.store import fingerprint

_READERS: dict[Kind, Callable[[BufferedReader, str], Iterator[Block]]] = {
    "jsonl": line_blocks,
    "json": json_blocks,
    "csv": partial(delimited_blocks, delimiter=","),
    "tsv": partial(delimited_blocks, delimiter="\t"),
    "parquet": parquet_blocks,
    "arrow": arrow_blocks,
    "txt": paragraph_blocks,
}

_BINARY = ("parquet", "arrow")

_POINTER = b"version https://git-lfs.github.com/spec/"
"""How a file begins that Git LFS left in the place of a large one."""

_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class FileSource:
    """Rows of files of one kind, one file after another.

    Attributes:
        name: For people.
        kind: What the files are.
        files: In their order, at least one.
        split: The split that they were chosen for; None where there are no splits.
    """

    name: str
    kind: Kind
    files: tuple[File, ...]
    split: str | None

    @cached_property
    def content(self) -> str:
        """A fingerprint of the kind and of what pins each file; names do not count."""
        return fingerprint(kind=self.kind, files=[file.pin for file in self.files])

    @property
    def revision(self) -> str:
        """What pins the only file, or the number of files and the fingerprint of all."""
        return self.files[0].pin if len(self.files) == 1 else f"{len(self.files):,} files, {self.content}"

    def blocks(self) -> Iterator[Block]:
        """The parts, each of about a MiB, read as a stream.

        Raises:
            UserError: A file is broken, changes while it is read, or cannot be had; or there are no rows.
        """
        is_empty = True
        for file in self.files:
            for block in _blocks(file, self.kind):
                is_empty = False
                yield block
        if is_empty:
            what = {"csv": "no records below its header", "tsv": "no records below its header"}
            raise UserError(f"{self.name} is empty: it has {what.get(self.kind, 'no rows')}")


def _blocks(file: File, kind: Kind) -> Iterator[Block]:
    split = split_name(file.name)
    assert split is not None
    compression = split[1]
    with _errors(file, kind in _BINARY or compression is not None), contextlib.closing(file.open()) as raw:
        _check_is_no_pointer(raw, file.name)
        stream = raw if compression is None else _decompressed(raw, compression)
        if kind not in _BINARY:
            _pass_mark(stream, file.name)
        yield from _READERS[kind](stream, file.name)


def _check_is_no_pointer(stream: BufferedReader, name: str) -> None:
    if stream.peek(len(_POINTER)).startswith(_POINTER):
        raise UserError(
            f"{name} is a Git LFS pointer, not the data that it stands for: fetch that with `git lfs pull`"
        )


def _decompressed(stream: BufferedReader, compression: str) -> BufferedReader:
    import pyarrow as pa  # of all readers it alone tells an end that came too early, for both kinds

    return BufferedReader(pa.CompressedInputStream(stream, compression), 2**20)


def _pass_mark(stream: BufferedReader, name: str) -> None:
    """Pass over a byte order mark.

    Raises:
        UserError: It is the mark of UTF-16.
    """
    head = stream.peek(len(_UTF8_MARK))
    if head.startswith(_UTF16_MARKS):
        raise UserError(f"{name} is in UTF-16, as its first bytes say: save it as UTF-8")
    if head.startswith(_UTF8_MARK):
        stream.read(len(_UTF8_MARK))


@contextlib.contextmanager
def _errors(file: File, is_coded: bool) -> Iterator[None]:
    """Turn errors of opening and reading a file into sentences.

    Args:
        file: The file.
        is_coded: Whether its bytes are decompressed or decoded, and so can be found broken.
    """
    with s3_errors(file.name) if file.name.startswith(SCHEME) else contextlib.nullcontext():
        try:
            yield
        except UserError:
            raise
        except PermissionError as error:
            if file.name.startswith(SCHEME):
                raise
            raise UserError(f"{file.name} may not be read by this user: change its permissions") from error
        except (OSError, ValueError, NotImplementedError) as error:
            # What pyarrow finds wrong with a file has no number of the system's.
            if not is_coded or (
                isinstance(error, OSError) and (error.errno is not None or error.__cause__ is not None)
            ):
                raise
            raise UserError(
                f"{file.name} is broken or not whole ({_one_line(error)}): copy or write it again"
            ) from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")[:300]
