"""How lines of many pods stand in one log and in their own files."""

import pytest

from components.cluster.log_lines import LogLines, with_rank


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("[rank 3] step 1", "[rank 3] step 1"),
        ("no rank", "[node 2] no rank"),
        ("", "[node 2] "),
        ("10%\r50%\r100%", "[node 2] 100%"),
        ("10%\r[rank 5] 100%\r", "[rank 5] 100%"),
        ("windows\r", "[node 2] windows"),
    ],
)
def test_every_line_has_its_rank_or_its_node(line, shown):
    assert with_rank(2, line) == shown


def test_lines_are_printed_as_a_whole_and_kept_as_they_came(tmp_path):
    printed = []
    lines = LogLines({"a": 0, "b": 1}.__getitem__, tmp_path / "pods", printed.append)
    lines.take("a", ["one\rtwo", "[rank 0] x"])
    lines.take("b", ["ü\udcff"])
    assert printed == ["[node 0] two\n[rank 0] x\n", "[node 1] ü\udcff\n"]
    # Readable at once: people look while the job runs.
    assert (tmp_path / "pods/a.log").read_bytes() == b"one\rtwo\n[rank 0] x\n"
    assert (tmp_path / "pods/b.log").read_text() == "ü\\udcff\n"


def test_a_line_that_comes_late_does_not_clear_the_file(tmp_path):
    printed = []
    lines = LogLines(lambda pod: 0, tmp_path, printed.append)
    lines.take("a", ["one"])
    lines.close()
    lines.take("a", ["late"])
    assert printed[-1] == "[node 0] late\n"
    assert (tmp_path / "a.log").read_text() == "one\n"


def test_without_a_folder_lines_are_printed_only(tmp_path):
    printed = []
    LogLines(lambda pod: 0, None, printed.append).take("a", ["one"])
    assert printed == ["[node 0] one\n"]


def test_a_disk_that_fails_costs_the_copies_only(tmp_path):
    (tmp_path / "pods").write_text("in the way of a folder")
    printed = []
    lines = LogLines(lambda pod: 0, tmp_path / "pods", printed.append)
    lines.take("a", ["one"])
    lines.take("a", ["two"])
    lines.close()
    assert printed[0] == "[node 0] one\n" and printed[2:] == ["[node 0] two\n"]
    assert printed[1].startswith("the pods' logs are not kept in files any more: ")
