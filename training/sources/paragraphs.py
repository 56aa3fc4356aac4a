"""Plain text files."""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader

from training.sources.lines import BLOCK_BYTES
from training.sources.rows import Malformed, Row


@dataclass(frozen=True)
class ParagraphsBlock:
    """Some lines of a text.

    Attributes:
        name: Of the file.
        first_line: Number of the first line, from 1.
        data: The lines; they begin and end with whole paragraphs.
    """

    name: str
    first_line: int
    data: bytes

    def rows(self) -> Iterator[Row | Malformed]:
        """A row for each paragraph, with the column `text`."""
        paragraph: list[bytes] = []
        first = self.first_line
        for number, line in enumerate([*self.data.split(b"\n"), b""], self.first_line):
            if line.strip():
                first = first if paragraph else number
                paragraph.append(line.removesuffix(b"\r"))
            elif paragraph:
                yield _row(b"\n".join(paragraph), f"{self.name} line {first}")
                paragraph = []


def paragraph_blocks(stream: BufferedReader, name: str) -> Iterator[ParagraphsBlock]:
    """The paragraphs of a text, each of which is a document: what stands between blank lines.

    A book so has many documents, of which some can be held out, and no document is larger than the memory: a
    paragraph that fills a block is cut at the end of a line.
    """
    first_line, num_bytes = 1, 0
    lines: list[bytes] = []
    while line := _line(stream):
        lines.append(line)
        num_bytes += len(line)
        is_blank = not line.strip()
        if num_bytes >= BLOCK_BYTES and (is_blank or num_bytes >= 2 * BLOCK_BYTES):
            data = b"".join(lines)
            yield ParagraphsBlock(name, first_line, data)
            first_line += data.count(b"\n")
            lines, num_bytes = [], 0
    data = b"".join(lines)
    if data.strip():
        yield ParagraphsBlock(name, first_line, data)


def _line(stream: BufferedReader) -> bytes:
    """A line, or of a line that fills a block as much, without a part of a character."""
    line = stream.readline(BLOCK_BYTES)
    while len(line) >= BLOCK_BYTES and 0x80 <= ord(stream.peek(1)[:1] or b"\n") < 0xC0:
        line += stream.read(1)
    return line


def _row(text: bytes, origin: str) -> Row | Malformed:
    if b"\0" in text:
        return Malformed(origin, "has NUL bytes, so it is not plain text: remove the line")
    try:
        return Row(origin, {"text": text.decode()})
    except UnicodeDecodeError as error:
        return Malformed(origin, f"is not UTF-8 (byte {error.start + 1}): save the file in this encoding")
