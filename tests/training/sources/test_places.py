"""Files, folders and globs; compression; what pins a source."""

import os
import stat

import pytest

from tests.training.sources.files import COMPRESS, read, source_of, values, write
from training.config import DataConfig
from training.errors import UserError
from training.sources import checksums, places
from training.sources.open import open_heldout, open_train

CONTENTS = {
    "t.jsonl": '{"text": "a"}\n{"text": "b"}\n',
    "t.json": '[{"text": "a"},\n{"text": "b"}]',
    "t.csv": "text\na\nb\n",
    "t.tsv": "text\na\nb\n",
    "t.txt": "a\n\nb\n",
}
ROWS = [{"text": "a"}, {"text": "b"}]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Two folders in which a relative path is looked for; the first is the working folder."""
    work, project = tmp_path / "work", tmp_path / "project"
    work.mkdir()
    project.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(places, "_PROJECT", project)
    return project


# Compression


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("name", CONTENTS)
def test_kinds_and_compressions(tmp_path, name, ending):
    assert values(write(tmp_path, name + ending, COMPRESS[ending](CONTENTS[name].encode()))) == ROWS


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_compressed_parts_that_were_joined(tmp_path, ending):
    parts = [COMPRESS[ending](line.encode()) for line in CONTENTS["t.jsonl"].splitlines(keepends=True)]
    assert values(write(tmp_path, f"t.jsonl{ending}", b"".join(parts))) == ROWS


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "not compressed", "empty"])
def test_a_compressed_file_that_is_broken_is_told_by_its_name(tmp_path, ending, damage):
    whole = COMPRESS[ending](CONTENTS["t.jsonl"].encode() * 100)
    content = {"cut": whole[:-6], "not compressed": CONTENTS["t.jsonl"].encode() * 100, "empty": b""}[damage]
    says = "is empty" if damage == "empty" else "is broken or not whole"
    with pytest.raises(UserError, match=rf"t\.jsonl{ending} {says}"):
        read(write(tmp_path, f"t.jsonl{ending}", content))


@pytest.mark.parametrize("name", [*CONTENTS, "t.parquet", "t.arrow", "t.jsonl.gz", "t.csv.zst"])
def test_a_pointer_of_git_lfs_is_told_from_data(tmp_path, name):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    with pytest.raises(UserError, match=rf"{name} is a Git LFS pointer, .* `git lfs pull`"):
        read(write(tmp_path, name, pointer))


# Folders and globs


def test_the_files_of_a_folder_are_read_in_their_order(tmp_path):
    for name in ("b.jsonl", "a/2.jsonl", "a/1.ndjson.gz"):
        text = f'{{"from": "{name}"}}\n'.encode()
        write(tmp_path / "rows", name, COMPRESS[".gz" if name.endswith(".gz") else ""](text))
    for name in (
        "README.md",
        "LICENSE",
        "Notice.txt",
        ".hidden.csv",
        "_SUCCESS",
        ".git/config",
        "dataset_infos.json",
    ):
        write(tmp_path / "rows", name, "not data")
    rows = read(f"{tmp_path}/rows/")
    assert [row.values["from"] for row in rows] == ["a/1.ndjson.gz", "a/2.jsonl", "b.jsonl"]
    assert rows[1].origin == f"{tmp_path}/rows/a/2.jsonl line 1"


@pytest.mark.parametrize("absolute", [True, False])
def test_a_glob(project, absolute):
    for name in ("rows-2.jsonl", "rows-1.jsonl", "other.jsonl", "rows-3.csv", "deep/er/rows-4.jsonl"):
        write(project, name, f'{{"from": "{name}"}}\n')
    start = f"{project}/" if absolute else ""
    assert [row["from"] for row in values(f"{start}rows-*.jsonl")] == ["rows-1.jsonl", "rows-2.jsonl"]
    assert read(f"{start}rows-*.jsonl")[0].origin == f"{start}rows-1.jsonl line 1"
    assert [row["from"] for row in values(f"{start}deep/**/*.jsonl")] == ["deep/er/rows-4.jsonl"]
    with pytest.raises(UserError, match=r"'none-\*\.jsonl', which does not exist in .*/work nor in .*/project:"):
        open_train(DataConfig(train="none-*.jsonl"))


def test_a_file_whose_name_has_the_signs_of_a_glob(tmp_path):
    assert values(write(tmp_path, "rows [1].jsonl", CONTENTS["t.jsonl"])) == ROWS


def test_several_kinds_in_a_folder_are_named(tmp_path):
    for name in ("a.csv", "b.jsonl", "c.py"):
        write(tmp_path / "rows", name, "x")
    with pytest.raises(UserError, match=r"several kinds \(.*a\.csv.*b\.jsonl.*c\.py\): .*folder/\*\.jsonl"):
        source_of(tmp_path / "rows")


def test_data_that_is_named_like_a_readme_is_data(tmp_path):
    for name in ("readmes.jsonl", "licenses-1.jsonl"):
        write(tmp_path / "rows", name, '{"a": 1}')
    assert len(read(tmp_path / "rows")) == 2


def test_a_folder_without_data(tmp_path):
    write(tmp_path / "rows", "README.md", "x")
    with pytest.raises(UserError, match="is a folder without data: put files into it"):
        source_of(tmp_path / "rows")


@pytest.mark.parametrize("name", ["t.xlsx", "t.jsonl.bz2", "t.md"])
@pytest.mark.parametrize("exists", [True, False])
def test_kinds_that_are_not_read(project, name, exists):
    if exists:
        write(project, name, "x")
    says = rf"'{name}', a kind of file that is not read: set it to \.jsonl" if exists else "which does not exist"
    with pytest.raises(UserError, match=says):
        source_of(name)


# Places


def test_a_missing_file_names_both_places(project):
    with pytest.raises(
        UserError, match=r"data\.train is 'none\.jsonl', which does not exist in .*work nor in .*project"
    ):
        source_of("none.jsonl")


def test_a_place_is_named_once(project, monkeypatch):
    monkeypatch.chdir(project)
    with pytest.raises(UserError, match="does not exist in") as error:
        source_of("none.jsonl")
    assert str(error.value).count(str(project)) == 1


def test_a_missing_absolute_path_is_looked_for_once(tmp_path):
    with pytest.raises(UserError, match=r"none\.jsonl', which does not exist: set it to a file \(\.jsonl"):
        source_of(tmp_path / "none.jsonl")


def test_relative_paths_start_at_the_working_folder_and_then_at_the_project(project, tmp_path):
    write(project, "rows.jsonl", '{"from": "project"}')
    assert values("rows.jsonl") == [{"from": "project"}]
    write(tmp_path / "work", "rows.jsonl", '{"from": "work"}')
    assert [tuple(row) for row in read("rows.jsonl")] == [("rows.jsonl line 1", {"from": "work"})]


def test_a_path_may_start_at_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, "t.jsonl", CONTENTS["t.jsonl"])
    assert values("~/t.jsonl") == values("~/*.jsonl") == ROWS


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    path = write(tmp_path, "t.jsonl", CONTENTS["t.jsonl"])
    path.chmod(0)
    with pytest.raises(UserError, match="may not be read by this user"):
        read(path)


def test_held_out_data_is_opened_as_training_data_is(tmp_path):
    path = write(tmp_path, "t.csv", CONTENTS["t.csv"])
    assert open_heldout(DataConfig(train="a.jsonl")) == ()
    sources = open_heldout(
        DataConfig(train="a.jsonl", heldout=[str(path), {"source": str(path), "name": "again"}])
    )
    assert [source.name for source in sources] == [str(path), "again"]
    with pytest.raises(UserError, match=r"data\.heldout is 'none\.jsonl', which does not exist"):
        open_heldout(DataConfig(train="a.jsonl", heldout="none.jsonl"))


def test_several_sources_keep_their_order_and_names(tmp_path):
    a, b = write(tmp_path, "a.csv", CONTENTS["t.csv"]), write(tmp_path, "b.txt", CONTENTS["t.txt"])
    sources = open_train(DataConfig(train=[{"source": str(b), "name": "bee"}, str(a)]))
    assert [source.name for source in sources] == ["bee", str(a)]


@pytest.mark.parametrize("setting", ["revision", "subset"])
@pytest.mark.parametrize("is_own", [True, False])
def test_a_revision_or_a_subset_needs_a_hub_data_set(project, setting, is_own):
    write(project, "t.jsonl", CONTENTS["t.jsonl"])
    own, all_sources = ({setting: "x"}, {}) if is_own else ({}, {setting: "x"})
    with pytest.raises(UserError, match=rf"'t\.jsonl' is not a hub data set, .* set data\.{setting} to null"):
        open_train(DataConfig(train=[{"source": "t.jsonl", **own}], **all_sources))


# What pins the content


def test_the_content_is_that_of_the_bytes_and_their_kind(tmp_path):
    a, b = write(tmp_path, "a.jsonl", '{"a": 1}'), write(tmp_path, "b.jsonl", '{"a": 1}')
    content = source_of(a).content
    assert source_of(b).content == content
    assert source_of(a).revision == f"sha256:{checksums.known_checksum(a)}"
    assert source_of(write(tmp_path, "a.txt", '{"a": 1}')).content != content
    write(tmp_path, "b.jsonl", '{"a": 2}')
    assert source_of(b).content != content


def test_the_content_of_a_folder_changes_with_any_file(tmp_path):
    for name in "abc":
        write(tmp_path / "rows", f"{name}.jsonl", f'{{"a": "{name}"}}')
    content = source_of(tmp_path / "rows").content
    assert source_of(tmp_path / "rows").revision == f"3 files, {content}"
    write(tmp_path / "rows", "README.md", "x")
    assert source_of(tmp_path / "rows").content == content
    write(tmp_path / "rows", "b.jsonl", '{"a": "x"}')
    other = source_of(tmp_path / "rows").content
    (tmp_path / "rows" / "c.jsonl").unlink()
    assert len({content, other, source_of(tmp_path / "rows").content}) == 3


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(checksums, "_WORTH_BYTES", 4)
    return tmp_path / "cache"


def old(path, seconds=100):
    state = path.stat()
    os.utime(path, ns=(state.st_mtime_ns, state.st_mtime_ns - seconds * 10**9))


def test_the_checksum_of_a_large_file_is_remembered(tmp_path, cache, monkeypatch):
    path = write(tmp_path, "t.jsonl", CONTENTS["t.jsonl"])
    old(path)
    pin = checksums.known_checksum(path)
    with monkeypatch.context() as patch:
        patch.setattr(checksums, "checksum", None)
        assert checksums.known_checksum(path) == pin
    path.write_text(CONTENTS["t.jsonl"].replace("a", "c"))
    assert checksums.known_checksum(path) != pin


@pytest.mark.parametrize("size", [3, 100])
def test_a_small_or_fresh_file_is_read_each_time(tmp_path, cache, size):
    path = write(tmp_path, "t.txt", "x" * size)
    if size == 3:
        old(path)
    checksums.known_checksum(path)
    assert not cache.exists()


def test_a_memory_of_checksums_that_is_broken_is_made_anew(tmp_path, cache):
    path = write(tmp_path, "t.jsonl", CONTENTS["t.jsonl"])
    old(path)
    pin = checksums.known_checksum(path)
    (memory,) = cache.rglob("*.json")
    assert stat.S_ISREG(memory.stat().st_mode)
    for text in ("{", "[]", "7", "\xff"):
        memory.write_bytes(text.encode("latin-1"))
        assert checksums.known_checksum(path) == pin
