"""Whatever the rows, and wherever a block or a buffer ends, what was written is read."""

import csv
import io
import json
from io import BufferedReader, BytesIO
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from training.sources import delimited, json_file, lines
from training.sources.delimited import delimited_blocks
from training.sources.json_file import json_blocks
from training.sources.lines import line_blocks
from training.sources.rows import Row

TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\{}[],:\n\r\t ;'), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
ROWS = st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), min_size=1, max_size=6)
BLOCKS = st.integers(1, 40)


def values(blocks):
    rows = [row for block in blocks for row in block.rows()]
    assert all(isinstance(row, Row) for row in rows), rows
    return [row.values for row in rows]


def stream(text):
    return BufferedReader(BytesIO(text.encode()))


@settings(max_examples=100, deadline=None)
@given(ROWS, BLOCKS, st.sampled_from([None, 0, 1]), st.booleans(), st.booleans())
def test_json_files(rows, block, indent, is_ascii, is_array):
    texts = [json.dumps(row, indent=indent, ensure_ascii=is_ascii) for row in rows]
    text = f"[{','.join(texts)}\n]" if is_array else "\n".join(texts)
    with mock.patch.object(json_file, "BLOCK_BYTES", block), mock.patch.object(lines, "BLOCK_BYTES", block):
        assert values(json_blocks(stream(text), "t.json")) == rows


@settings(max_examples=30, deadline=None)
@given(ROWS, BLOCKS)
def test_json_lines(rows, block):
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with mock.patch.object(lines, "BLOCK_BYTES", block):
        assert values(line_blocks(stream(text), "t.jsonl")) == rows


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=8),
    BLOCKS,
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
)
def test_csv_files(records, block, end, quoting):
    # Python's writer does not quote a field for a lone carriage return.
    lost = "\0" if quoting == csv.QUOTE_ALL else "\0\r"
    records = [tuple(field.translate(dict.fromkeys(map(ord, lost))) for field in record) for record in records]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end, quoting=quoting).writerows([("a", "b"), *records])
    with mock.patch.object(delimited, "BLOCK_BYTES", block):
        found = values(delimited_blocks(stream(text.getvalue()), "t.csv", ","))
    assert [(row["a"], row["b"]) for row in found] == records
