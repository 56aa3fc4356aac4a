"""A `.json` file: an array of objects, objects one after another, or one object a line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import NamedTuple

from training.errors import UserError
from training.sources.json_text import parse
from training.sources.lines import BLOCK_BYTES, MAX_RECORD_BYTES, LinesBlock, line_blocks, rest_of_line, too_long
from training.sources.rows import Malformed, Row

# A string cannot hold a line break, so a quote that is missing spoils the rest of its line only.
_STRING = rb'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'

_BETWEEN = re.compile(_STRING + rb'|(["\[\]{},])', re.DOTALL)
"""Between records: the next string, or what may begin or end a record."""

_WITHIN = re.compile(rb'(?:[^"\[\]{}]++|' + _STRING + rb')*+(["\[\]{}])', re.DOTALL)
"""Within a record: all up to the next bracket, or to a quote without a second on its line."""

_OPENING = {b"]": b"[", b"}": b"{"}


class _Record(NamedTuple):
    number: int
    line: int
    text: bytes


@dataclass(frozen=True)
class JsonBlock:
    """Some records of a file, cut out and not yet parsed."""

    name: str
    records: tuple[_Record, ...]

    def rows(self) -> Iterator[Row | Malformed]:
        """The records' objects."""
        for number, line, text in self.records:
            yield parse(text, f"{self.name} record {number} (line {line})")


def json_blocks(stream: BufferedReader, name: str) -> Iterator[LinesBlock | JsonBlock]:
    """The records of a file, of which no more than a block and the longest record are in memory.

    Raises:
        UserError: The file ends within a record, or goes on after its array, or a record is too long.
    """
    first_line, head = 1, b""
    while (head := stream.readline(BLOCK_BYTES)) and head.isspace():
        first_line += head.count(b"\n")
    if not head:
        return
    is_array = head.lstrip().startswith(b"[")
    if not is_array:
        head += b"" if head.endswith(b"\n") else rest_of_line(stream, name)
        first = parse(head, "")
        # An empty object is on one line too where all others are on many.
        if isinstance(first, Row) and first.values:
            yield LinesBlock(name, first_line, head)
            yield from line_blocks(stream, name, first_line + 1)
            return
    records: list[_Record] = []
    num_bytes = 0
    for record in _records(stream, head, first_line, name, is_array):
        records.append(record)
        num_bytes += len(record.text)
        if num_bytes >= BLOCK_BYTES:
            yield JsonBlock(name, tuple(records))
            records, num_bytes = [], 0
    if records:
        yield JsonBlock(name, tuple(records))


def _records(stream: BufferedReader, buffer: bytes, line: int, name: str, is_array: bool) -> Iterator[_Record]:
    """Cut records out by their brackets, without parsing, so that a malformed one does not end it all."""
    opened: list[bytes] = []
    number, start, position = 0, 0, 0
    outer = 1 if is_array else 0
    while True:
        is_within = len(opened) > outer
        match = _WITHIN.match(buffer, position) if is_within else _BETWEEN.search(buffer, position)
        token = match and match[1]
        # A quote at the end is perhaps that of a string that goes on after the buffer.
        if match and not (token == b'"' and buffer.find(b"\n", match.start(1)) < 0):
            position = match.end()
            if token in (b"{", b"["):
                opened.append(token)
                if is_array and len(opened) == 1:
                    line += buffer.count(b"\n", start, position)
                    start = position
                continue
            is_end = token == b"," and is_array and not is_within
            if token in _OPENING and _OPENING[token] in opened:
                while opened.pop() != _OPENING[token]:
                    pass  # one that was not closed
                is_end = not opened
            if not is_end:
                continue
            text = buffer[start : match.start(1) if is_array else position]
            if text.strip() or token == b",":
                number += 1
                blank = len(text) - len(text.lstrip())
                yield _Record(number, line + text.count(b"\n", 0, blank), text.strip())
            line += buffer.count(b"\n", start, position)
            start = position
            if is_array and not opened:
                _check_end(stream, buffer[position:], name)
                return
            continue
        more = stream.read(max(BLOCK_BYTES, len(buffer) - start))
        if not more:
            break
        if len(buffer) - start > MAX_RECORD_BYTES:
            raise too_long(f"record {number + 1}", name)
        buffer, position, start = buffer[start:] + more, position - start, 0
    rest = buffer[start:]
    if is_array or rest.strip():
        line += rest.count(b"\n", 0, len(rest) - len(rest.lstrip()))
        raise UserError(
            f"{name} ends in the middle of record {number + 1} (line {line}): a bracket or a quote is missing "
            "there or before, or the file is not whole. Mend it, or save it with one JSON object a line as .jsonl"
        )


def _check_end(stream: BufferedReader, rest: bytes, name: str) -> None:
    while rest:
        if rest.strip():
            raise UserError(
                f"{name} goes on after the end of its array: keep one array, or save it with one JSON object a "
                "line as .jsonl"
            )
        rest = stream.read(BLOCK_BYTES)
