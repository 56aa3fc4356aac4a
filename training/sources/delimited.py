"""CSV and TSV files, as RFC 4180 has them: quoted fields may hold separators, line breaks and doubled quotes."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

from training.errors import UserError
from training.sources.lines import BLOCK_BYTES, rest_of_line
from training.sources.rows import Malformed, Row, check_columns

_MAX_FIELD = 2**26
"""Longest field, in characters. A quote that is never closed is told here, before all the file is one field."""

_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}


@dataclass(frozen=True)
class DelimitedBlock:
    """Some records.

    Attributes:
        name: Of the file.
        header: Names of the columns.
        delimiter: Between fields.
        first_line: Number of the first line, from 1.
        data: The lines, which begin with a record.
    """

    name: str
    header: tuple[str, ...]
    delimiter: str
    first_line: int
    data: bytes

    def rows(self) -> Iterator[Row | Malformed]:
        """The records, as strings by column."""
        try:
            text, all_utf8 = self.data.decode(), True
        except UnicodeDecodeError:
            text, all_utf8 = self.data.decode(errors="surrogateescape"), False
        reader = _reader(io.StringIO(text, newline="\n"), self.delimiter)
        while True:
            origin = f"{self.name} line {self.first_line + reader.line_num}"
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield Malformed(origin, f"is not valid CSV ({error}): quote fields, and double quotes within them")
                continue
            if fields:
                problem = self._problem(fields, all_utf8)
                yield (
                    Malformed(origin, problem)
                    if problem
                    else Row(origin, dict(zip(self.header, fields, strict=True)))
                )

    def _problem(self, fields: list[str], all_utf8: bool) -> str | None:
        if len(fields) != len(self.header):
            return (
                f"has {len(fields)} field{'s' * (len(fields) != 1)}, and the header {len(self.header)}: quote "
                "fields that hold separators or line breaks"
            )
        if any("\0" in field for field in fields):
            return "has NUL bytes (of a file that was not written to its end?): remove the line"
        if not all_utf8 and not all(_is_utf8(field) for field in fields):
            return "is not UTF-8: save the file in this encoding"
        return None


def delimited_blocks(stream: BufferedReader, name: str, delimiter: str) -> Iterator[DelimitedBlock]:
    """The records of a file with a header.

    They are read here too, to find where one ends, by the same reader as in the block.

    Raises:
        UserError: The header cannot be used, or a line is too long.
    """
    # Latin-1 decodes anything, and what separates fields and records is the same in UTF-8.
    lines: list[bytes] = []

    def feed() -> Iterator[str]:
        while line := rest_of_line(stream, name):
            lines.append(line)
            yield line.decode("latin-1")

    reader = _reader(feed(), delimiter)
    header = _header(reader, name, delimiter)
    first_line, num_bytes = reader.line_num + 1, 0
    lines.clear()
    seen = 0
    while True:
        try:
            next(reader)
        except StopIteration:
            break
        except csv.Error:
            pass  # told by who parses the block
        num_bytes += sum(map(len, lines[seen:]))
        seen = len(lines)
        if num_bytes >= BLOCK_BYTES:
            yield DelimitedBlock(name, header, delimiter, first_line, b"".join(lines))
            first_line, num_bytes, seen = first_line + len(lines), 0, 0
            lines.clear()
    data = b"".join(lines)
    if data.strip():
        yield DelimitedBlock(name, header, delimiter, first_line, data)


def _reader(lines: Iterator[str], delimiter: str) -> Any:
    csv.field_size_limit(_MAX_FIELD)
    return csv.reader(lines, delimiter=delimiter, strict=True)


def _header(reader: Any, name: str, delimiter: str) -> tuple[str, ...]:
    try:
        fields: list[str] = next((fields for fields in reader if fields), [])
        header = tuple(field.encode("latin-1").decode().strip() for field in fields)
    except csv.Error as error:
        raise UserError(f"{name} has a header that is not valid CSV ({error}): mend its first line") from None
    except UnicodeDecodeError:
        raise UserError(f"{name} has a header that is not UTF-8: save the file in this encoding") from None
    odd = [
        word
        for other, word in _SEPARATORS.items()
        if other != delimiter and len(header) == 1 and other in header[0]
    ]
    if odd:
        raise UserError(
            f"the header of {name} is one column, '{header[0]}', with {odd[0]} and without "
            f"{_SEPARATORS[delimiter]}: save the file with commas as .csv, or with tabs as .tsv"
        )
    check_columns(f"the header of {name}", header)
    return header


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
