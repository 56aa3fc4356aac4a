"""JSON lines: one object a line."""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader

from training.sources.json_text import parse
from training.sources.rows import Malformed, Row

BLOCK_BYTES = 2**20
"""Size at which a block of any kind ends: small beside the memory, and large beside what a hand-over costs."""


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
    """
    while data := stream.read(BLOCK_BYTES):
        data += stream.readline()
        if not data.isspace():
            yield LinesBlock(name, first_line, data)
        first_line += data.count(b"\n")
