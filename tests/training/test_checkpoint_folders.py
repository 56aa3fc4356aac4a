"""Names of checkpoints, their manifests, and the files that are not as they were written."""

import errno
import hashlib
import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.checkpoint import checkpoints, newest_step, remove_all
from training.checkpoint.folders import clear_after, name_of, quarantine, quarantined, staging_of
from training.checkpoint.manifest import FileEntry, about_checkpoint, read_manifest
from training.checkpoint.verify import Pace, damaged_files, read_back, shares
from training.errors import UserError
from training.store import seal


def make(folder, step, **about):
    checkpoint = folder / name_of(step)
    checkpoint.mkdir(parents=True)
    (checkpoint / ".metadata").write_bytes(b"what is where")
    (checkpoint / "__0_0.distcp").write_bytes(bytes(range(256)) * 8)
    seal(checkpoint, {**about_checkpoint(step, 2, "store", {"model": "m"}), **about})
    return checkpoint


def test_only_sealed_folders_count_in_the_order_of_their_steps(tmp_path):
    assert checkpoints(tmp_path / "none") == [] and newest_step(tmp_path / "none") == 0
    for step in (90_000_000, 100_000_000, 5):  # names of nine digits sort before those of eight
        make(tmp_path, step)
    (tmp_path / "step-99999999").mkdir()
    (tmp_path / "step-notes").mkdir()
    (tmp_path / "step-notes" / "manifest.json").write_text("{}")
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000005", "step-90000000", "step-100000000"]
    assert newest_step(tmp_path) == 100_000_000


def test_what_is_newer_and_what_was_being_written_goes(tmp_path):
    for step in (1, 2, 3):
        make(tmp_path, step)
    (tmp_path / "step-00000004").mkdir()
    staging_of(tmp_path, 1, 4).mkdir()
    quarantine(tmp_path / "step-00000003")
    clear_after(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged-step-00000003", "step-00000001"]
    assert quarantined(tmp_path) == ["damaged-step-00000003"]
    clear_after(tmp_path, None)
    assert newest_step(tmp_path) == 1
    remove_all(tmp_path)
    assert not tmp_path.exists()


def test_a_manifest_says_what_was_sealed(tmp_path):
    manifest = read_manifest(make(tmp_path, 7))
    assert manifest.step == 7 and manifest.about["world_size"] == 2 and manifest.about["model"] == "m"
    assert sorted(manifest.files) == [".metadata", "__0_0.distcp"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "[" * 100_000, '{"about": 3, "files": {}}', '{"files": {}}', "\x00" * 300],
)
def test_a_manifest_that_is_garbage_is_damaged(tmp_path, text):
    checkpoint = make(tmp_path, 7)
    (checkpoint / "manifest.json").write_text(text)
    assert read_manifest(checkpoint) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["files"].pop(".metadata"),
        lambda content: content["files"].clear(),
        lambda content: content["files"][".metadata"].update(bytes=-1),
        lambda content: content["files"][".metadata"].update(sha256="no"),
        lambda content: content["about"].update(step=8),
        lambda content: content["about"].update(step="7"),
        lambda content: content["about"].pop("tier"),
    ],
)
def test_a_manifest_that_contradicts_its_folder_is_damaged(tmp_path, change):
    checkpoint = make(tmp_path, 7)
    content = json.loads((checkpoint / "manifest.json").read_text())
    change(content)
    (checkpoint / "manifest.json").write_text(json.dumps(content))
    assert read_manifest(checkpoint) is None


@pytest.mark.parametrize("number", [2, "1", None])
def test_another_versions_checkpoint_is_refused_by_name(tmp_path, number):
    checkpoint = make(tmp_path, 7, format=number)
    with pytest.raises(UserError, match=f"{checkpoint} was made by another version of Shardline"):
        read_manifest(checkpoint)


def test_a_known_checksum_is_taken_as_it_is_and_a_known_size_is_not(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    seal(tmp_path, {}, {"a": {"bytes": 3, "sha256": "f" * 64}})
    assert json.loads((tmp_path / "manifest.json").read_text())["files"]["a"]["sha256"] == "f" * 64
    with pytest.raises(OSError, match="has 3 bytes, but 4 were written"):
        seal(tmp_path, {}, {"a": {"bytes": 4, "sha256": "f" * 64}})
    with pytest.raises(FileNotFoundError):
        seal(tmp_path, {}, {"b": {"bytes": 4, "sha256": "f" * 64}})


def test_files_that_are_not_as_they_were_written_are_named(tmp_path):
    checkpoint = make(tmp_path, 7)
    files = read_manifest(checkpoint).files
    read = []
    assert damaged_files(checkpoint, files, list(files), read.append) == []
    assert sum(read) == sum(entry.bytes for entry in files.values())
    shard = checkpoint / "__0_0.distcp"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    (checkpoint / ".metadata").unlink()
    (checkpoint / ".metadata").mkdir()
    assert damaged_files(checkpoint, files, [".metadata", "__0_0.distcp"]) == [".metadata", "__0_0.distcp"]
    assert damaged_files(checkpoint, files, [".metadata"]) == [".metadata"]


@pytest.mark.parametrize(("times", "expected"), [(2, []), (10**9, [".metadata"])])
def test_only_an_error_that_stays_is_damage(tmp_path, monkeypatch, times, expected):
    monkeypatch.setattr("training.checkpoint.verify._PATIENCE_S", 0.2 if expected else 20)
    monkeypatch.setattr("training.patience._PAUSE_S", 0.01)
    checkpoint = make(tmp_path, 7)
    files = read_manifest(checkpoint).files
    path_type, left = type(tmp_path), [times]
    whole = path_type.open

    def stumble(path, *args, **more):
        if path.name == ".metadata" and left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "Input/output error")
        return whole(path, *args, **more)

    monkeypatch.setattr(path_type, "open", stumble)
    assert damaged_files(checkpoint, files, list(files)) == expected


def test_reading_back_gives_the_checksum_of_more_than_a_block(tmp_path):
    content = bytes(9 * 2**20 + 5)
    (tmp_path / "file").write_bytes(content)
    assert read_back(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_reading_rests_three_times_as_long_as_a_block_took_until_nothing_is_computed_any_more():
    over = threading.Event()
    pace = Pace(over)
    began = time.monotonic()
    for _ in range(2):
        time.sleep(0.05)
        pace.rest()
    assert time.monotonic() - began >= 4 * 0.1
    began = time.monotonic()
    pace._since = began - 60
    pace.rest()
    assert 1 <= time.monotonic() - began < 20, "a block that a disk took long for is not rested from for long"
    over.set()
    began = time.monotonic()
    pace._since = began - 60
    pace.rest()
    assert time.monotonic() - began < 30


@given(st.lists(st.integers(0, 10**12), max_size=40), st.integers(1, 9))
def test_every_file_is_in_one_share_and_shares_are_even(sizes, num):
    files = {f"file-{number}": FileEntry(bytes=size, sha256="0" * 64) for number, size in enumerate(sizes)}
    parts = shares(files, num)
    assert sorted(name for part in parts for name in part) == sorted(files)
    loads = [sum(files[name].bytes for name in part) for part in parts]
    assert max(loads) - min(loads) <= max(sizes, default=0)
