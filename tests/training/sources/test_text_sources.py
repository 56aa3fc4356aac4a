"""CSV, TSV and plain text."""

import csv
import io
import pickle

import pytest

from tests.training.sources.files import problems, read, source_of, values, write
from training.errors import UserError
from training.sources import delimited, paragraphs
from training.sources.rows import Malformed

# CSV and TSV

RECORDS = [
    {"id": "1", "text": "plain", "n": ""},
    {"id": "2", "text": 'says "yes", twice', "n": "x,y"},
    {"id": "3", "text": "line one\nline two\r\n\r\nline four", "n": "\t"},
    {"id": "4", "text": "日本 🙂 \u2028 \x85", "n": " kept "},
]


def as_csv(records, delimiter=",", end="\n"):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(records[0]), delimiter=delimiter, lineterminator=end)
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


@pytest.mark.parametrize("block", [1, 20, 2**20])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize(("name", "delimiter"), [("t.csv", ","), ("t.tsv", "\t")])
def test_fields_with_quotes_separators_and_line_breaks(tmp_path, monkeypatch, block, end, mark, name, delimiter):
    monkeypatch.setattr(delimited, "BLOCK_BYTES", block)
    assert values(write(tmp_path, name, mark + as_csv(RECORDS, delimiter, end).encode())) == RECORDS


def test_records_know_their_first_line(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 1)
    path = write(tmp_path, "t.csv", '\na,b\n1,"x\ny"\n\n2,z\n')
    assert [(row.origin, row.values["a"]) for row in read(path)] == [
        (f"{path} line 3", "1"),
        (f"{path} line 6", "2"),
    ]


@pytest.mark.parametrize("block", [1, 2**20])
@pytest.mark.parametrize(
    ("record", "says"),
    [
        ("1,2,3", "has 3 fields, and the header 2"),
        ("1", "has 1 field, and the header 2"),
        ('"a"b,2', "is not valid CSV (',' expected after '\"')"),
        ("\xe9,2".encode("latin-1"), "is not UTF-8"),
        ("a\0,2", "has NUL bytes"),
    ],
)
def test_a_malformed_record_is_named_and_the_next_is_read(tmp_path, monkeypatch, block, record, says):
    monkeypatch.setattr(delimited, "BLOCK_BYTES", block)
    record = record if isinstance(record, bytes) else record.encode()
    path = write(tmp_path, "t.csv", b"a,b\n1,2\n" + record + b"\n5,6\n")
    first, malformed, last = read(path)
    assert (first.values, last.values) == ({"a": "1", "b": "2"}, {"a": "5", "b": "6"})
    assert isinstance(malformed, Malformed)
    assert malformed.origin == f"{path} line 3"
    assert malformed.problem.startswith(says)


def test_a_quote_that_is_never_closed_is_named(tmp_path):
    path = write(tmp_path, "t.csv", 'a,b\n1,2\n3,"4\n5,6\n')
    (problem,) = problems(path)
    assert problem.startswith(f"{path} line 3 is not valid CSV (unexpected end of data)")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no records below its header"),
        ("a,b\n", "no records below its header"),
        ("a,b\n\n\r\n", "no records below its header"),
        ("a,b,a\n1,2,3\n", "names the column 'a' twice"),
        ("a;b\n1;2\n", "is one column, 'a;b', with semicolons and without commas"),
        ('a,"b\n', "has a header that is not valid CSV"),
        ("\xe9,b\n".encode("latin-1"), "has a header that is not UTF-8"),
    ],
)
def test_headers_that_cannot_be_used(tmp_path, content, says):
    with pytest.raises(UserError, match=says):
        read(write(tmp_path, "t.csv", content))


def test_a_huge_field_is_read_and_blocks_pickle(tmp_path):
    text = 'word "quoted", ' * 200_000
    path = write(tmp_path, "t.csv", as_csv([{"a": text, "b": "1"}, {"a": "x", "b": "2"}] * 2))
    blocks = [pickle.loads(pickle.dumps(block)) for block in source_of(path).blocks()]
    assert len(blocks) > 1
    assert [row.values["a"] == text for block in blocks for row in block.rows()] == [True, False] * 2


# Plain text


@pytest.mark.parametrize("block", [1, 2**20])
def test_a_paragraph_is_a_row(tmp_path, monkeypatch, block):
    monkeypatch.setattr(paragraphs, "BLOCK_BYTES", block)
    monkeypatch.setattr(paragraphs, "_line", lambda stream: stream.readline())
    path = write(tmp_path, "t.txt", "\ufeffTitle\r\n\r\n  \nFirst line,\nsecond é line.\n\n\nEnd")
    rows = read(path)
    assert [row.values for row in rows] == [
        {"text": "Title"},
        {"text": "First line,\nsecond é line."},
        {"text": "End"},
    ] or block == 1
    assert rows[0].origin == f"{path} line 1"
    assert rows[-1].origin == f"{path} line 8"


def test_a_paragraph_that_fills_a_block_is_cut_at_the_end_of_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(paragraphs, "BLOCK_BYTES", 100)
    lines = [f"line {n} of a text without blank lines" for n in range(50)]
    rows = values(write(tmp_path, "t.txt", "\n".join(lines)))
    assert len(rows) > 5
    assert "\n".join(row["text"] for row in rows).split("\n") == lines


@pytest.mark.parametrize("character", ["a", "é", "日", "🙂"])
def test_a_line_larger_than_a_block_is_cut_between_characters(tmp_path, monkeypatch, character):
    monkeypatch.setattr(paragraphs, "BLOCK_BYTES", 100)
    rows = values(write(tmp_path, "t.txt", character * 1000))
    assert len(rows) > 3
    assert "".join(row["text"] for row in rows) == character * 1000


@pytest.mark.parametrize(("bad", "says"), [(b"\xe9", "is not UTF-8 (byte 1)"), (b"a\0b", "has NUL bytes")])
def test_a_malformed_paragraph_is_named_and_the_next_is_read(tmp_path, bad, says):
    path = write(tmp_path, "t.txt", b"one\n\n" + bad + b"\n\nthree")
    first, malformed, last = read(path)
    assert (first.values["text"], last.values["text"]) == ("one", "three")
    assert f"{path} line 3 {says}" in " ".join(malformed)
