"""Damaged checkpoints, disks that hang or are full, and kills in the middle of a save."""

import errno
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from tests.checkpointing import digest, saver, set_up, step
from tests.runs import forkserver
from training.checkpoint import checkpoints, space, store_tier, verifier
from training.checkpoint.checkpointer import StorageHungError
from training.checkpoint.choose import choose_checkpoint
from training.checkpoint.folders import name_of, quarantined
from training.checkpoint.groups import disk_group, together
from training.checkpoint.hashing import HashingFiles
from training.checkpoint.load import load_checkpoint
from training.checkpoint.local_tier import rank_folder
from training.checkpoint.store_tier import write_to_store
from training.checkpoint.verifier import Verifier
from training.errors import UserError
from training.events import Alert, Note
from training.patience import StorageError


@pytest.fixture(scope="module", autouse=True)
def _alone():
    """A process group of this process alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_WORLD_SIZE", "1")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tiny_model):
    model, optimizer = set_up(tiny_model)
    step(model, optimizer, 0)
    return model, optimizer


def save(folder, number, value=None):
    """A checkpoint of one tensor, which is the step's number."""
    state = {"x": torch.full((4096,), float(number if value is None else value))}
    return write_to_store(state, folder, number, attempt=1, identity={"model": "m"}, group=dist.group.WORLD)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


DAMAGE = {
    "a flipped bit": lambda folder: flip(folder / "__0_0.distcp"),
    "a flipped bit in the metadata": lambda folder: flip(folder / ".metadata"),
    "zeros": lambda folder: (folder / "__0_0.distcp").write_bytes(bytes((folder / "__0_0.distcp").stat().st_size)),
    "a shard cut short": lambda folder: cut(folder / "__0_0.distcp"),
    "a missing shard": lambda folder: (folder / "__0_0.distcp").unlink(),
    "missing metadata": lambda folder: (folder / ".metadata").unlink(),
    "a manifest of garbage": lambda folder: (folder / "manifest.json").write_bytes(b"\xff\x00{"),
    "an empty manifest": lambda folder: (folder / "manifest.json").write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_checkpoint_is_passed_over(tmp_path, damage):
    save(tmp_path, 1)
    damage(save(tmp_path, 2))
    chosen, damaged = choose_checkpoint(tmp_path)
    assert chosen == tmp_path / name_of(1) and damaged == [name_of(2)]
    assert (tmp_path / "damaged-step-00000002").is_dir()
    assert choose_checkpoint(tmp_path) == (chosen, [])


SURVIVED = {
    "a foreign file": lambda folder: (folder / name_of(2) / ".nfs0001").write_bytes(b"?"),
    "an empty folder": lambda folder: (folder / name_of(3)).mkdir(),
    "one that was being written": lambda folder: (folder / ".staging-1-step-00000003").mkdir(),
    "a folder of another name": lambda folder: (folder / "step-last").mkdir(),
    "one without a manifest": lambda folder: (save(folder, 3) / "manifest.json").unlink(),
}


@pytest.mark.parametrize("change", SURVIVED.values(), ids=SURVIVED.keys())
def test_what_is_beside_the_newest_checkpoint_does_not_matter(tmp_path, change):
    save(tmp_path, 2)
    change(tmp_path)
    chosen, damaged = choose_checkpoint(tmp_path)
    assert chosen == tmp_path / name_of(2) and damaged == []
    state = {"x": torch.zeros(4096)}
    store_tier.dcp.load(state, checkpoint_id=chosen)
    assert set(state["x"].tolist()) == {2.0}
    assert not list(tmp_path.glob("*00003"))


def test_a_run_falls_back_past_several_and_never_to_none(tmp_path):
    assert choose_checkpoint(tmp_path) == (None, [])
    for number in (1, 2, 3):
        save(tmp_path, number)
    flip(tmp_path / name_of(3) / "__0_0.distcp")
    cut(tmp_path / name_of(2) / "__0_0.distcp")
    assert choose_checkpoint(tmp_path) == (tmp_path / name_of(1), [name_of(3), name_of(2)])
    (tmp_path / name_of(1) / "__0_0.distcp").unlink()
    for _ in range(2):  # nothing has been mended by being told
        with pytest.raises(UserError, match=r"damaged-step-00000003.*restore one, or remove"):
            choose_checkpoint(tmp_path)


def test_one_that_has_lost_its_manifest_is_no_reason_to_begin_anew(tmp_path):
    (tmp_path / name_of(2)).mkdir()
    assert choose_checkpoint(tmp_path) == (None, []), "an empty folder never was one"
    (save(tmp_path, 1) / "manifest.json").unlink()
    for _ in range(2):
        with pytest.raises(UserError, match=r"\(damaged-step-00000001\): restore one"):
            choose_checkpoint(tmp_path)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE])
@pytest.mark.parametrize("name", ["manifest.json", "__0_0.distcp"])
def test_what_a_disk_does_not_give_now_is_not_damaged(tmp_path, monkeypatch, name, number):
    save(tmp_path, 1)
    refuse(monkeypatch, name, number)
    with pytest.raises(OSError, match=os.strerror(number)):
        choose_checkpoint(tmp_path)
    watch = keeper(tmp_path, 1)
    verify(watch)
    assert watch.take_failure().errno == number
    monkeypatch.undo()
    assert choose_checkpoint(tmp_path) == (tmp_path / name_of(1), [])


def test_a_sector_that_cannot_be_read_is_damage(tmp_path, monkeypatch):
    for number in (1, 2):
        save(tmp_path, number)
    refuse(monkeypatch, f"{name_of(2)}/__0_0.distcp", errno.EIO)
    assert choose_checkpoint(tmp_path) == (tmp_path / name_of(1), [name_of(2)])


def refuse(monkeypatch, name, number):
    """Let a disk refuse to open files of this name."""
    real = Path.open

    def refused(path, *args, **kwargs):
        if str(path).endswith(name):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refused)


def test_another_versions_checkpoint_is_refused_and_stays(tmp_path):
    save(tmp_path, 1)
    manifest = save(tmp_path, 2) / "manifest.json"
    content = json.loads(manifest.read_text())
    content["about"]["format"] = 99
    manifest.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"made by another version of Shardline \(format 99, this one reads 1\)"):
        choose_checkpoint(tmp_path)
    assert len(checkpoints(tmp_path)) == 2


def test_a_local_folder_that_cannot_be_made_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"checkpoint.local_folder cannot be used on the node .*Not a directory"):
        choose_checkpoint(tmp_path / "store", tmp_path / "file" / "run")


def test_long_reading_says_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("training.checkpoint.choose._WORD_EVERY_S", 0)
    save(tmp_path, 1)
    said = []
    choose_checkpoint(tmp_path, say=said.append)
    assert said[-1] == "verifying step-00000001: 100% of this rank's 0.0 GiB"


def keeper(folder, keep, damaged=None):
    fail = pytest.fail
    return Verifier(folder, keep, 60, damaged or (lambda *found: fail(str(found))), fail, fail)


def verify(watch):
    watch.verify_newest()
    assert watch._background.wait(20)


def test_an_old_one_goes_only_when_a_newer_one_was_read_back(tmp_path):
    found = []
    watch = keeper(tmp_path, 1, lambda name, files: found.append((name, files)))
    save(tmp_path, 1)
    verify(watch)
    flip(save(tmp_path, 2) / "__0_0.distcp")
    verify(watch)
    assert found == [("step-00000002", ["__0_0.distcp"])]
    assert [path.name for path in checkpoints(tmp_path)] == [name_of(1)]
    save(tmp_path, 3)
    assert [path.name for path in checkpoints(tmp_path)] == [name_of(1), name_of(3)]
    verify(watch)
    assert [path.name for path in checkpoints(tmp_path)] == [name_of(3)]


def test_of_damaged_ones_as_many_stay_as_of_whole_ones_and_only_a_whole_one_lets_them_go(tmp_path):
    watch = keeper(tmp_path, 2, lambda name, files: None)
    for number in range(1, 5):
        flip(save(tmp_path, number) / "__0_0.distcp")
        verify(watch)
    assert quarantined(tmp_path) == [f"damaged-{name_of(number)}" for number in range(1, 5)]
    save(tmp_path, 5)
    verify(watch)
    assert quarantined(tmp_path) == [f"damaged-{name_of(number)}" for number in (3, 4)]
    assert [path.name for path in checkpoints(tmp_path)] == [name_of(5)]


def test_one_that_came_meanwhile_does_not_count_before_it_is_verified(tmp_path, monkeypatch):
    watch = keeper(tmp_path, 1)
    for number in (1, 2):
        save(tmp_path, number)
    read = verifier.damaged_files

    def slow(*args):
        if checkpoints(tmp_path)[-1].name == name_of(2):
            save(tmp_path, 3)
        return read(*args)

    monkeypatch.setattr(verifier, "damaged_files", slow)
    verify(watch)
    assert [path.name for path in checkpoints(tmp_path)] == [name_of(2), name_of(3)]


def test_a_verification_that_goes_on_at_the_end_is_cut_short(tmp_path, monkeypatch):
    reading, gate = threading.Event(), threading.Event()
    read = verifier.damaged_files

    def slow(folder, files, names, on_read):
        reading.set()
        gate.wait(20)
        return read(folder, files, names, on_read)

    monkeypatch.setattr(verifier, "damaged_files", slow)
    watch = keeper(tmp_path, 1)
    save(tmp_path, 1)
    watch.verify_newest()
    assert reading.wait(20)
    threading.Timer(0.2, gate.set).start()
    watch.close(finish=False)
    shutil.rmtree(tmp_path)
    assert not watch._background.has_failed


def test_one_found_damaged_is_told_and_saved_again_at_once(tmp_path, trained, monkeypatch):
    told = []
    write = store_tier.seal

    def seal_and_flip(folder, *args):
        write(folder, *args)
        flip(folder / "__0_0.distcp")

    checkpointer = saver(tmp_path, *trained, told.append)
    monkeypatch.setattr(store_tier, "seal", seal_and_flip)
    checkpointer.save(1)
    checkpointer.wait()
    assert checkpointer._verifier._background.wait(20)
    assert checkpointer.is_wanted
    (note,) = [event for event in told if isinstance(event, Note)]
    assert note.level == "warning" and "step-00000001 is not on the disk as it was written" in note.text
    monkeypatch.setattr(store_tier, "seal", write)
    assert checkpointer.save(2) and not checkpointer.is_wanted
    checkpointer.wait()
    assert choose_checkpoint(tmp_path) == (tmp_path / name_of(2), [])
    checkpointer.close(finished=False)


def texts(told):
    return [event.text for event in told if isinstance(event, Note)]


def test_a_checkpoint_that_cannot_be_verified_is_told_and_the_older_stay(tmp_path, trained, monkeypatch):
    told = []

    def fail(folder):
        raise OSError(116, "Stale file handle")

    checkpointer = saver(tmp_path, *trained, told.append, keep=1)
    monkeypatch.setattr(verifier.folders, "newest_step", fail)
    for number in (1, 2):
        checkpointer.save(number)
        checkpointer.wait()
        assert checkpointer._verifier._background.wait(20)
    assert [text for text in texts(told) if "was not verified, so older ones stay: [Errno 116]" in text]
    assert [path.name for path in checkpoints(tmp_path)] == [name_of(1), name_of(2)]
    checkpointer.close(finished=False)


def test_a_hung_disk_holds_no_step_up(tmp_path, trained, monkeypatch):
    told, gate, stuck = [], threading.Event(), threading.Event()
    clear = shutil.rmtree

    def frozen(path, **options):
        stuck.set()
        gate.wait(60)
        clear(path, **options)

    # The first that a save does on the disk.
    monkeypatch.setattr(store_tier, "shutil", SimpleNamespace(rmtree=frozen))
    checkpointer = saver(tmp_path, *trained, told.append, timeout_s=1.0)
    before = digest(*trained)
    started = time.monotonic()
    assert checkpointer.save(1)
    assert stuck.wait(20)
    step(*trained, 1, checkpointer.wait_for_copy)
    waited = time.monotonic()
    assert not checkpointer.save(2)
    assert time.monotonic() - waited < 1.0, "a step waits for less than timeout_s"
    waited = time.monotonic()
    assert not checkpointer.save(3) and not checkpointer.save(4)
    assert time.monotonic() - waited < 0.5, "once is enough"
    assert not checkpointer.is_wanted
    with pytest.raises(StorageHungError, match=r"did not end within checkpoint.timeout_s") as error:
        checkpointer.save(5, block=True)
    assert error.value.what == "storage"
    assert time.monotonic() - started < 10
    (alert,) = [event for event in told if isinstance(event, Alert)]
    assert alert.what == "storage" and "the save of step 1" in alert.text
    assert len(texts(told)) == 2 and sum("was left out" in text for text in texts(told)) == 1
    gate.set()
    assert checkpointer._store.wait(20)
    assert checkpointer.is_wanted
    assert any("the disk answers again: the save of step 1 took" in text for text in texts(told))
    checkpointer._config = checkpointer._config.model_copy(update={"timeout_s": 60})
    assert checkpointer.save(6, block=True)
    assert [path.name for path in checkpoints(tmp_path)] == [name_of(1), name_of(6)]
    load_checkpoint(tmp_path / name_of(1), *trained, {})
    assert digest(*trained) == before, "the late save holds the state at its time"
    checkpointer.close(finished=False)


def test_a_save_that_does_not_fit_is_refused_before_anything_is_written(tmp_path, trained, monkeypatch):
    checkpointer = saver(tmp_path / "store", *trained)
    checkpointer.save(1, block=True)
    monkeypatch.setattr(space.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(UserError, match=r"the checkpoint of step 2 needs .* has 0.00 GiB free.*another store"):
        checkpointer.save(2, block=True)
    assert [path.name for path in (tmp_path / "store").iterdir()] == [name_of(1)]
    assert choose_checkpoint(tmp_path / "store")[0].name == name_of(1)
    checkpointer.close(finished=False)
    local = saver(tmp_path / "other", *trained, local=tmp_path / "local")
    local.save(1)
    local.wait_for_copy()
    assert local._front.wait(20)
    with pytest.raises(UserError, match=r"this node's part of .* choose another checkpoint.local_folder"):
        raise local._front.take_failure()
    assert checkpoints(rank_folder(tmp_path / "local")) == checkpoints(tmp_path / "other") == []
    local.close(finished=False)


def test_a_disk_that_will_be_full_is_told_of_at_the_first_save(tmp_path, trained, monkeypatch):
    told, free = [], [10**9]
    monkeypatch.setattr(space.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[0]))
    for name, fit in (("enough", 3), ("short", 2)):
        checkpointer = saver(tmp_path / name, *trained, told.append, keep=3)
        checkpointer.save(1)
        checkpointer.wait()
        size = sum(path.stat().st_size for path in (tmp_path / "enough" / name_of(1)).iterdir())
        checkpointer.close(finished=False)
        free[0] = 2 * size + size // 2  # for the next
        words = [event.text for event in told if event.kind == "note" and "has room for" in event.text]
        assert len(words) == (fit == 2)
    assert "has room for 2 more checkpoint(s)" in words[0] and "up to 4 are there at a time" in words[0]


def test_a_disk_that_fills_up_in_a_save_keeps_what_was_there_and_nothing_of_the_new(tmp_path, monkeypatch):
    save(tmp_path, 1)
    create, begun = HashingFiles.create_stream, []

    def fill(files, path, mode):
        begun.append(path)
        if number and len(begun) > 1:
            raise OSError(number, os.strerror(number))
        return create(files, path, mode)

    monkeypatch.setattr(HashingFiles, "create_stream", fill)
    for number, kind in ((errno.ENOSPC, RuntimeError), (errno.EIO, StorageError)):
        with pytest.raises(kind, match=os.strerror(number)) as caught:
            save(tmp_path, 2)
        assert caught.type is kind and len(begun) == 2, "half of it was written"
        begun.clear()
    assert [path.name for path in tmp_path.iterdir()] == [name_of(1)]
    number = 0
    assert choose_checkpoint(tmp_path) == (tmp_path / name_of(1), [])


def test_a_checkpoint_that_cannot_be_read_any_more_is_told_as_an_error_that_all_catch(tmp_path, trained):
    checkpointer = saver(tmp_path, *trained)
    checkpointer.save(1, block=True)
    for shard in (tmp_path / name_of(1)).glob("*.distcp"):
        shard.write_bytes(b"")
    with pytest.raises(RuntimeError, match="rank 0: "):
        load_checkpoint(tmp_path / name_of(1), *trained, {})
    checkpointer.close(finished=False)


def test_a_failure_of_one_rank_is_raised_with_its_words():
    def fail():
        raise UserError("the disk is full")

    with pytest.raises(UserError, match=r"^the disk is full$"):
        together(fail, disk_group())


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_in(module, name, *, after=False):
    """Let a function kill the process, before or after it has done its work."""
    function = getattr(module, name)

    def kills(*args, **kwargs):
        if after:
            function(*args, **kwargs)
        kill()

    setattr(module, name, kills)


def half_removed(folder):
    (folder / "manifest.json").unlink()
    kill()


PHASES = {
    "before the shards": lambda: _kill_in(store_tier.dcp, "save"),
    "among the shards": lambda: _kill_in(os, "fsync"),
    "after the shards": lambda: _kill_in(store_tier.dcp, "save", after=True),
    "after the seal": lambda: _kill_in(store_tier, "seal", after=True),
    "after the rename": lambda: _kill_in(store_tier, "rename_into_place", after=True),
    "while it is verified": lambda: _kill_in(verifier, "damaged_files"),
    "before old ones are removed": lambda: _kill_in(verifier, "remove"),
    "while old ones are removed": lambda: setattr(verifier, "remove", half_removed),
}


def save_and_die(folder, phase):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    watch = keeper(folder, 1)
    save(folder, 1)
    verify(watch)
    PHASES[phase]()
    save(folder, 2)
    verify(watch)


def test_a_kill_in_any_phase_of_a_save_leaves_the_one_before_or_the_new_one(tmp_path):
    processes = {
        phase: forkserver.Process(target=save_and_die, args=(tmp_path / str(number), phase))
        for number, phase in enumerate(PHASES)
    }
    for process in processes.values():
        process.start()
    for number, (phase, process) in enumerate(processes.items()):
        folder = tmp_path / str(number)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL, phase
        chosen, damaged = choose_checkpoint(folder)
        assert damaged == [], phase
        expected = 1 if number < 4 else 2
        assert chosen == folder / name_of(expected), phase
        state = {"x": torch.zeros(4096)}
        store_tier.dcp.load(state, checkpoint_id=chosen)
        assert set(state["x"].tolist()) == {float(expected)}, phase
        # And the run goes on from there.
        verify_after = keeper(folder, 1)
        save(folder, 3)
        verify(verify_after)
        assert [path.name for path in checkpoints(folder)] == [name_of(3)], phase
