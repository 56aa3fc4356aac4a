"""Checkpoints: written while training goes on, whole or absent, and the same at every world size."""

import json
import shutil
import threading
import time

import pytest
import torch.distributed as dist
from torch.distributed.checkpoint.staging import DefaultStager

from tests.checkpointing import IDENTITY, digest, saver, set_up, step
from tests.runs import run_ranks
from training.checkpoint import checkpoints, store_tier
from training.checkpoint.choose import choose_checkpoint
from training.checkpoint.hashing import HashingFiles
from training.checkpoint.load import load_checkpoint
from training.events import Note, Span, read_events


def begin(rank, source, folder, kind):
    model, optimizer = set_up(source, optimizer_state=kind)
    for seed in range(3):
        step(model, optimizer, seed)
    saver(folder, model, optimizer).save(3, block=True)
    if rank == 0:
        (folder / "digest").write_text(digest(model, optimizer))
    else:
        digest(model, optimizer)


def carry_on(rank, source, folder, kind):
    model, optimizer = set_up(source, optimizer_state=kind)
    saved, _ = choose_checkpoint(folder)
    steps = load_checkpoint(saved, model, optimizer, IDENTITY)
    assert steps == int(saved.name.removeprefix("step-"))
    assert digest(model, optimizer) == (folder / "digest").read_text()
    step(model, optimizer, steps)
    now = digest(model, optimizer)
    saver(folder, model, optimizer).save(steps + 1, block=True)
    if rank == 0:
        (folder / "digest").write_text(now)


@pytest.mark.parametrize("kind", ["fp32", "bf16", "8bit"])
def test_weights_and_moments_are_exact_at_every_world_size(kind, tiny_model, tmp_path):
    folder = tmp_path / "checkpoints"
    run_ranks(2, begin, tiny_model, folder, kind)
    for world_size in (1, 3, 4):
        run_ranks(world_size, carry_on, tiny_model, folder, kind)


def save_while_training(rank, source, folder):
    model, optimizer = set_up(source)
    step(model, optimizer, 0)
    gate = threading.Event()
    write = store_tier.dcp.save

    def slow(*args, **kwargs):
        assert threading.current_thread() is not threading.main_thread()
        assert gate.wait(60)
        return write(*args, **kwargs)

    store_tier.dcp.save = slow
    copy = DefaultStager.stage

    def slow_copy(self, state):
        time.sleep(0.5)  # time enough for the backward pass to be over, and the state to be changed
        return copy(self, state)

    DefaultStager.stage = slow_copy
    checkpointer = saver(folder, model, optimizer)
    before = digest(model, optimizer)
    started = time.monotonic()
    checkpointer.save(1)
    assert time.monotonic() - started < 0.5, "the copy is made beside the training"
    for seed in range(1, 4):  # with collectives of their own, beside those of the save
        step(model, optimizer, seed, checkpointer.wait_for_copy)
    assert checkpoints(folder) == [], "it is not there before it is whole"
    assert digest(model, optimizer) != before
    gate.set()
    checkpointer.wait()
    dist.barrier()
    (saved,) = checkpoints(folder)
    assert load_checkpoint(saved, model, optimizer, IDENTITY) == 1
    assert digest(model, optimizer) == before, "the save holds the state at its time"


def test_training_goes_on_while_a_checkpoint_is_written(tiny_model, tmp_path):
    run_ranks(2, save_while_training, tiny_model, tmp_path / "checkpoints")


def save_in_vain(rank, source, folder):
    model, optimizer = set_up(source)
    step(model, optimizer, 0)
    failures = []
    checkpointer = saver(
        folder, model, optimizer, lambda e: failures.append(e.text) if isinstance(e, Note) else None
    )
    create = HashingFiles.create_stream

    def fail(files, path, mode):
        if dist.get_rank() == 1:
            raise OSError(28, "No space left on device")
        return create(files, path, mode)

    HashingFiles.create_stream = fail
    checkpointer.save(1)
    with pytest.raises(RuntimeError, match=r"rank 1: OSError: .*No space left"):
        checkpointer.save(2)
    assert all("No space left" in text for text in failures) and checkpoints(folder) == []
    assert len(failures) == (1 if rank == 0 else 0), "once, not on every rank"
    # What it failed of has passed: the state that there is now is saved, and at once.
    checkpointer.save(3)
    checkpointer._store.wait(60)
    HashingFiles.create_stream = create
    checkpointer.save(4)
    assert [path.name for path in checkpoints(folder)] == ["step-00000004"]
    assert len(failures) == (2 if rank == 0 else 0)
    checkpointer.wait()


def test_a_write_that_failed_is_told_and_made_up_for_by_the_next(tiny_model, tmp_path):
    run_ranks(2, save_in_vain, tiny_model, tmp_path / "checkpoints")


def fail_on_the_leader(rank, source, folder):
    model, optimizer = set_up(source)
    step(model, optimizer, 0)
    checkpointer = saver(folder, model, optimizer)
    seal = store_tier.seal

    def fail(*args, **kwargs):
        raise OSError(5, "Input/output error")

    store_tier.seal = fail  # which only rank 0 calls
    checkpointer.save(1)
    checkpointer._store.wait(60)
    store_tier.seal = seal
    checkpointer.save(2)
    step(model, optimizer, 1, checkpointer.wait_for_copy)
    checkpointer.save(3)
    checkpointer.wait()
    checkpointer.barrier()
    assert [path.name for path in checkpoints(folder)] == ["step-00000002", "step-00000003"]


def test_a_failure_of_one_rank_keeps_all_in_step(tiny_model, tmp_path):
    run_ranks(2, fail_on_the_leader, tiny_model, tmp_path / "checkpoints")


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_run_keeps_the_newest_and_says_how_long_each_took(make_run, asynchronous):
    saving = {"every_steps": 1, "keep": 2, "keep_after_finish": True, "asynchronous": asynchronous}
    run = make_run(training={"max_steps": 4}, checkpoint=saving)
    run.train(2)
    assert [path.name for path in checkpoints(run.folder.checkpoints)] == ["step-00000003", "step-00000004"]
    spans = [e for e in read_events(run.folder.events) if isinstance(e, Span) and e.source == "rank-0"]
    written = [e for e in spans if e.name == "checkpoint_write"]
    assert len(written) == 4 and all(e.seconds > 0 for e in written)
    # What the steps waited for: every save but the last, after which there is no step.
    assert [step.checkpoint_s > 1e-3 for step in run.steps()] == [False, True, True, True]


def test_a_run_killed_while_it_writes_goes_on_from_the_checkpoint_before(make_run):
    settings = {"max_steps": 3, "learning_rate": 0.01}
    quiet = make_run("quiet", training=settings)
    quiet.train(2)
    run = make_run("killed", training=settings, checkpoint={"every_steps": 1, "keep_after_finish": True})
    run.train(2)
    newest = checkpoints(run.folder.checkpoints)[-1]
    # As a kill leaves it: the last checkpoint half written.
    newest.rename(newest.with_name(f".staging-1-{newest.name}"))
    shutil.rmtree(run.folder.model)
    run.train(2, attempt=2)
    assert "resumed from step-00000002" in run.logs()
    assert [s.loss for s in run.steps()] == [s.loss for s in quiet.steps()]


def test_the_staged_copy_is_of_this_ranks_shards_only(make_run):
    run = make_run(training={"max_steps": 1}, checkpoint={"keep_after_finish": True})
    run.train(2)
    (saved,) = checkpoints(run.folder.checkpoints)
    sizes = [path.stat().st_size for path in sorted(saved.glob("*.distcp"))]
    assert len(sizes) == 2 and max(sizes) < 1.5 * min(sizes), sizes
    assert json.loads((saved / "manifest.json").read_text())["about"]["world_size"] == 2
