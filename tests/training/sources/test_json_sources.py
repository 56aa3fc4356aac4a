"""JSON lines, and JSON files."""

import json
import pickle

import pytest

from tests.training.sources.files import problems, read, source_of, values, write
from training.errors import UserError
from training.sources import json_file, lines
from training.sources.rows import Malformed, Row

# JSON lines


def test_rows_know_their_file_and_line(tmp_path):
    path = write(tmp_path, "t.jsonl", '{"text": "a"}\n\n  \n{"text": "é\u2028日"}')
    assert read(path) == [
        Row(f"{path} line 1", {"text": "a"}),
        Row(f"{path} line 4", {"text": "é\u2028日"}),
    ]


@pytest.mark.parametrize("name", ["t.jsonl", "t.ndjson", "T.JSONL", "t.json"])
def test_windows_files_are_read(tmp_path, name):
    path = write(tmp_path, name, b'\xef\xbb\xbf{"a": 1}\r\n\xef\xbb\xbf{"a": 2}\r\n')
    assert values(path) == [{"a": 1}, {"a": 2}]


def test_odd_characters_pass_unchanged(tmp_path):
    text = '{"a": "\\ud83d \\u0000 \u0085\u2029\ufeff\U0001f642 e\u0301 \u202e"}\n'
    assert values(write(tmp_path, "t.jsonl", text)) == [
        {"a": "\ud83d \0 \u0085\u2029\ufeff\U0001f642 e\u0301 \u202e"}
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"a": ', "is not valid JSON (Expecting value"),
        ("{'a': 1}", "is not valid JSON"),
        ('{"a": 1} {"a": 2}', "is not valid JSON (Extra data at character 10"),
        ("[1]", "is a JSON array: each record has to be one JSON object"),
        ('"a"', "is a JSON string"),
        ("null", "is a JSON null"),
        ("true", "is a JSON boolean"),
        ('{"a": ' + "9" * 4301 + "}", "has a number of too many digits"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "is nested too deeply"),
        ('{"a": "\xe9"}'.encode("latin-1"), "is not UTF-8 (byte 8)"),
        (b"\0" * 20, "has NUL bytes"),
    ],
)
def test_a_malformed_line_is_named_and_the_next_is_read(tmp_path, line, says):
    line = line if isinstance(line, bytes) else line.encode()
    path = write(tmp_path, "t.jsonl", b'{"a": 1}\n' + line + b'\n{"a": 3}\n')
    first, malformed, last = read(path)
    assert (first.values, last.values, last.origin) == ({"a": 1}, {"a": 3}, f"{path} line 3")
    assert isinstance(malformed, Malformed)
    assert malformed.origin == f"{path} line 2"
    assert malformed.problem.startswith(says)


@pytest.mark.parametrize("name", ["t.jsonl", "t.json", "t.txt"])
@pytest.mark.parametrize("content", ["", "\n \r\n"])
def test_a_file_without_rows_is_refused(tmp_path, name, content):
    path = write(tmp_path, name, content)
    with pytest.raises(UserError, match=rf"{name} is empty: it has no rows"):
        read(path)


@pytest.mark.parametrize("name", ["t.jsonl", "t.json", "t.csv", "t.txt"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf16_is_recognised(tmp_path, name, encoding):
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    with pytest.raises(UserError, match=rf"{name} is in UTF-16.*save it as UTF-8"):
        read(write(tmp_path, name, mark + '{"a": 1}\n'.encode(encoding)))


def test_blocks_are_small_pickle_and_count_their_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 100)
    rows = [{"n": n, "text": "x" * (n % 50)} for n in range(200)]
    path = write(tmp_path, "t.jsonl", "".join(json.dumps(row) + "\n" * (1 + row["n"] % 2) for row in rows))
    blocks = [pickle.loads(pickle.dumps(block)) for block in source_of(path).blocks()]
    assert max(len(block.data) for block in blocks) < 200
    found = [row for block in blocks for row in block.rows()]
    assert [row.values for row in found] == rows
    text = path.read_text().split("\n")
    assert all(json.loads(text[int(row.origin.split()[-1]) - 1]) == row.values for row in found)


def test_a_huge_line_is_one_row(tmp_path):
    row = {"text": "word " * 1_000_000}
    assert values(write(tmp_path, "t.jsonl", json.dumps(row) + '\n{"text": "b"}\n')) == [row, {"text": "b"}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.jsonl", b"x" * 3000),
        ("t.jsonl", b'{"a": 1}\n' + b"x" * 3000 + b"\n"),
        ("t.json", b"[" + b'{"a": ' * 500),
        ("t.json", b'{"a": ' + b"x" * 3000),
        ("t.csv", b"a\n" + b"x" * 3000),
    ],
)
def test_a_record_that_never_ends_does_not_fill_the_memory(tmp_path, monkeypatch, name, content):
    for module in (lines, json_file):
        monkeypatch.setattr(module, "BLOCK_BYTES", 100)
        monkeypatch.setattr(module, "MAX_RECORD_BYTES", 1000)
    with pytest.raises(UserError, match=rf"of .*{name} has more than .* MiB, as if it never ended"):
        read(write(tmp_path, name, content))


# JSON files

ROWS = [{"a": '}],[{\\" "', "b": [1, {"c": []}]}, {"a": "zwei\n\n"}, {"a": "日本"}]


@pytest.mark.parametrize("block", [1, 7, 2**20])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_an_array_of_objects(tmp_path, monkeypatch, block, indent, ascii_only):
    monkeypatch.setattr(json_file, "BLOCK_BYTES", block)
    text = json.dumps(ROWS, indent=indent, ensure_ascii=ascii_only)
    assert values(write(tmp_path, "t.json", "\n  " + text + "\n")) == ROWS


@pytest.mark.parametrize("indent", [None, 2])
def test_objects_one_after_another(tmp_path, indent):
    text = "\n".join(json.dumps(row, indent=indent) for row in ROWS)
    assert values(write(tmp_path, "t.json", text)) == ROWS


def test_one_object_is_one_row(tmp_path):
    assert values(write(tmp_path, "t.json", json.dumps(ROWS[0]))) == [ROWS[0]]


def test_records_of_a_json_file_know_their_line(tmp_path):
    path = write(tmp_path, "t.json", '[\n\n {"a":\n 1},\n {"a": 2}, {"a": 3}\n]')
    assert [row.origin for row in read(path)] == [
        f"{path} record 1 (line 3)",
        f"{path} record 2 (line 5)",
        f"{path} record 3 (line 5)",
    ]


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ("{'a': 1}", "is not valid JSON"),
        ('{"a": [1}', "is not valid JSON"),
        ('{"a": "x}', "is not valid JSON"),
        ('{"a": 1,}', "is not valid JSON"),
        ("7", "is a JSON number"),
        ("", "is not valid JSON (Expecting value"),
        ('{"a": "\xe9"}'.encode("latin-1"), "is not UTF-8"),
    ],
)
def test_a_malformed_record_of_an_array_is_named_and_the_next_is_read(tmp_path, record, says):
    record = record if isinstance(record, bytes) else record.encode()
    path = write(tmp_path, "t.json", b'[{"a": 1},\n' + record + b',\n{"a": 3},\n{"a": 4}\n]')
    rows = read(path)
    malformed = [row for row in rows if isinstance(row, Malformed)]
    assert malformed[0].problem.startswith(says)
    assert malformed[0].origin.startswith(f"{path} record 2")
    assert [row.values["a"] for row in rows if isinstance(row, Row)] in ([1, 3, 4], [1, 4])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('[{"a": 1},\n{"a": 2', r"ends in the middle of record 2 \(line 2\)"),
        ('[{"a": 1}', "ends in the middle of record 1"),
        ('{"a":\n[1', "ends in the middle of record 1"),
        ('[{"a": 1}]\n{"b": 1}', "goes on after the end of its array"),
    ],
)
def test_a_json_file_that_is_not_whole(tmp_path, content, says):
    path = write(tmp_path, "t.json", content)
    with pytest.raises(UserError, match=says) as error:
        read(path)
    assert str(path) in str(error.value)


def test_an_array_on_one_line_is_read_in_blocks(tmp_path):
    rows = [{"text": f"{n} " * 1000} for n in range(1000)]
    blocks = list(source_of(write(tmp_path, "t.json", json.dumps(rows))).blocks())
    assert len(blocks) > 3
    assert [row.values for block in blocks for row in block.rows()] == rows


def test_the_last_comma_of_an_array_is_forgiven(tmp_path):
    assert problems(write(tmp_path, "t.json", '[{"a": 1},\n]')) == []
