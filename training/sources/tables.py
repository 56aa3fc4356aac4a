"""Rows in Arrow tables: Parquet files, Arrow files, and data sets of the hub."""

import io
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

from training.sources.lines import BLOCK_BYTES
from training.sources.rows import Malformed, Row, check_columns

MAX_ROWS = 8192
"""Most rows of a block."""

_ARROW_FILE = b"ARROW1\0\0"
"""How an Arrow file begins; after it stands the same as in an Arrow stream."""

_UNREADABLE = (ValueError, OverflowError, KeyError)
"""What pyarrow raises for a value that Python has not: no UTF-8, a year beyond 9999, an unknown time zone."""


@dataclass(frozen=True)
class TableBlock:
    """Some rows of a table.

    Attributes:
        name: Of the file, or of the split.
        first_row: Number of the first row, from 1.
        data: The rows as an Arrow stream.
    """

    name: str
    first_row: int
    data: bytes

    def rows(self) -> Iterator[Row | Malformed]:
        """The rows; a null is None."""
        import pyarrow as pa

        table = pa.ipc.open_stream(self.data).read_all()
        decode = _json_decoder(table.schema)
        try:
            rows: list[dict[str, Any] | str] = table.to_pylist()
        except _UNREADABLE:
            rows = [_row_or_problem(table.slice(place, 1)) for place in range(table.num_rows)]
        for number, values in enumerate(rows, self.first_row):
            origin = f"{self.name} row {number}"
            if isinstance(values, str):
                yield Malformed(origin, values)
            else:
                yield Row(origin, decode(values) if decode else values)


def table_blocks(batches: Iterable[Any], name: str) -> Iterator[TableBlock]:
    """Cut record batches into blocks.

    Args:
        batches: Record batches of pyarrow, in their order.
        name: Of what they are read from.

    Raises:
        UserError: Two columns have the same name.
    """
    first_row = 1
    for batch in batches:
        check_columns(f"the schema of {name}", batch.schema.names)
        step = max(1, min(MAX_ROWS, batch.num_rows * BLOCK_BYTES // max(1, batch.nbytes)))
        for place in range(0, batch.num_rows, step):
            part = batch.slice(place, step)
            yield TableBlock(name, first_row, _as_stream(part))
            first_row += part.num_rows


def parquet_blocks(stream: BufferedReader, name: str) -> Iterator[TableBlock]:
    """The rows of a Parquet file, of which a row group's pages are read one after another.

    Raises:
        ValueError, OSError: Of pyarrow, for a file that is broken.
    """
    import pyarrow.parquet as pq

    with tempfile.TemporaryFile() as copy:
        file: Any = stream
        if not stream.seekable():  # it was compressed as a whole
            shutil.copyfileobj(stream, copy)
            file = copy
        # Without pre_buffer, which would hold all of a row group in memory.
        with pq.ParquetFile(file, pre_buffer=False, buffer_size=BLOCK_BYTES) as parquet:
            yield from table_blocks(_batches(parquet), name)


def arrow_blocks(stream: BufferedReader, name: str) -> Iterator[TableBlock]:
    """The rows of an Arrow IPC file or stream.

    Raises:
        ValueError, OSError: Of pyarrow, for a file that is broken.
    """
    import pyarrow as pa

    is_file = stream.peek(len(_ARROW_FILE)).startswith(_ARROW_FILE)
    if is_file:
        stream.read(len(_ARROW_FILE))
    with pa.ipc.open_stream(stream) as reader:
        yield from table_blocks(reader, name)
    # A stream may end without a mark, so one that is cut between two batches cannot be told from a whole one.
    if is_file and not stream.read().endswith(_ARROW_FILE.rstrip(b"\0")):
        raise ValueError("its end is missing")


def _batches(parquet: Any) -> Iterator[Any]:
    for group in range(parquet.num_row_groups):
        metadata = parquet.metadata.row_group(group)
        row_bytes = metadata.total_byte_size / max(1, metadata.num_rows)
        size = max(1, min(MAX_ROWS, int(4 * BLOCK_BYTES / max(1, row_bytes))))
        yield from parquet.iter_batches(batch_size=size, row_groups=[group])


def _as_stream(batch: Any) -> bytes:
    import pyarrow as pa

    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, batch.schema) as writer:
        writer.write_batch(batch)
    return buffer.getvalue()


def _row_or_problem(table: Any) -> dict[str, Any] | str:
    try:
        values: dict[str, Any] = table.to_pylist()[0]
    except UnicodeDecodeError:
        return "is not UTF-8: write the file's strings in this encoding"
    except _UNREADABLE as error:
        return f"has a value that cannot be read ({error}): write it as a string, or leave its column out"
    return values


def _json_decoder(schema: Any) -> Any:
    """What makes objects of columns that `datasets` keeps as JSON text; None if there are none."""
    if "arrow.json" not in str(schema):
        return None
    from datasets import Features

    return Features.from_arrow_schema(schema).decode_example
