"""JSON lines: one object a line."""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader

from training.errors import UserError
from training.sources.json_text import parse
from training.sources.rows import Malformed, Row

BLOCK_BYTES = 2**20
"""Size at which a block of any kind ends: small beside the memory, and large beside what a hand-over costs."""

MAX_RECORD_BYTES = 2**28
"""Longest record. More is not a document but a file of another layout, which would fill the memory."""


@dataclass(frozen=True)
class LinesBlock:
    """Some lines; blank ones are passed over.

    Attributes:
        name: Of the file.
        first_line: Number of the first line, from 1.
        data: The lines.
    """

    name: str
    first_line: int
    data: bytes

    def rows(self) -> Iterator[Row | Malformed]:
        """The lines' objects."""
        for number, line in enumerate(self.data.split(b"\n"), self.first_line):
            if line.strip():
                yield parse(line, f"{self.name} line {number}")


def line_blocks(stream: BufferedReader, name: str, first_line: int = 1) -> Iterator[LinesBlock]:
    """The lines of a stream, which are counted here and parsed by who has the block.

    Args:
        stream: Open for reading.
        name: Of the file.
        first_line: Number of the line at which the stream stands.

    Raises:
        UserError: As `rest_of_line`.
    """
    while data := stream.read(BLOCK_BYTES):
        data += rest_of_line(stream, name)
        if not data.isspace():
            yield LinesBlock(name, first_line, data)
        first_line += data.count(b"\n")


def rest_of_line(stream: BufferedReader, name: str) -> bytes:
    """What is left of a line, with its end; empty at the end of the file.

    Raises:
        UserError: It is longer than any record.
    """
    line = stream.readline(MAX_RECORD_BYTES)
    if len(line) == MAX_RECORD_BYTES:
        raise too_long("a line", name)
    return line


def too_long(what: str, name: str) -> UserError:
    """The error for a record of more than `MAX_RECORD_BYTES`.

    Args:
        what: The record.
        name: Of the file.
    """
    return UserError(
        f"{what} of {name} has more than {MAX_RECORD_BYTES / 2**20:,.0f} MiB, as if it never ended: save the file "
        "with one JSON object a line as .jsonl, or as the kind that it is"
    )
