"""Checkpoints on the nodes' own disks, and the store's behind them."""

import os
import threading

import torch.distributed as dist

from tests.checkpointing import IDENTITY, digest, saver, set_up, step
from tests.runs import run_ranks
from training.checkpoint import checkpointer as checkpointing
from training.checkpoint import checkpoints
from training.checkpoint.choose import choose_checkpoint
from training.checkpoint.folders import name_of
from training.checkpoint.load import load_checkpoint
from training.checkpoint.local_tier import rank_folder
from training.events import Span, read_events


def names(folder):
    return [path.name for path in checkpoints(folder)]


def save_on_both_tiers(rank, source, folder, local, keep):
    model, optimizer = set_up(source, optimizer_state="8bit")
    told = []
    uploading, gate = threading.Event(), threading.Event()
    write = checkpointing.write_to_store

    def slow(*args, **kwargs):
        uploading.set()
        assert gate.wait(60)
        return write(*args, **kwargs)

    checkpointing.write_to_store = slow
    saving = saver(folder, model, optimizer, told.append, local, keep=keep)
    digests = {}
    for number in range(1, 5):
        step(model, optimizer, number, saving.wait_for_copy)
        digests[number] = digest(model, optimizer)
        assert saving.save(number), "no save waits for the store"
        if number == 1:
            assert uploading.wait(60)
    assert saving._front.wait(60)
    mine = rank_folder(local)
    assert names(mine) == [name_of(3), name_of(4)] and names(folder) == []
    assert sorted(path.name for path in local.iterdir()) == ["rank-0", "rank-1"]
    gate.set()
    saving.wait()
    saving.barrier()
    # What was written meanwhile came to the store in one go.
    assert names(folder) == [name_of(1), name_of(4)]
    assert [event.detail for event in told if isinstance(event, Span)].count("local") == 4
    saving.close(finished=False)

    def restored(expected_step, place):
        chosen, damaged = choose_checkpoint(folder, local)
        assert chosen == place / name_of(expected_step) and damaged == []
        assert load_checkpoint(chosen, model, optimizer, IDENTITY) == expected_step
        assert digest(model, optimizer) == digests[expected_step]
        dist.barrier()

    restored(4, mine)
    # On one node it is damaged, so that it counts on none; the store has it whole.
    if rank == 1:
        content = bytearray((mine / name_of(4) / "state.pt").read_bytes())
        content[-200] ^= 1
        (mine / name_of(4) / "state.pt").write_bytes(content)
    dist.barrier()
    restored(4, folder)
    assert names(mine) == [name_of(3)], "it is gone from all nodes"
    # Without the store's newest, what the nodes have is newer than what is left there.
    if rank == 0:
        (folder / name_of(4)).rename(folder.parent / "kept")
    dist.barrier()
    restored(3, mine)
    assert not saving.is_wanted and saver(folder, model, optimizer, local=local).is_wanted, "the store lacks it"
    if rank == 0:
        (folder.parent / "kept").rename(folder / name_of(4))
    dist.barrier()
    # With other ranks on a node, each has other shards.
    os.environ["LOCAL_WORLD_SIZE"] = "1"
    restored(4, folder)
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    # A replaced node has nothing.
    if rank == 1:
        (mine / name_of(3)).rename(mine / "gone")
    dist.barrier()
    restored(4, folder)


def test_the_newest_that_is_whole_everywhere_is_loaded_bit_for_bit(tiny_model, tmp_path):
    folder, local = tmp_path / "checkpoints", tmp_path / "node" / "run"
    run_ranks(2, save_on_both_tiers, tiny_model, folder, local, 2)
    run_ranks(1, load_at_another_size, tiny_model, folder, local)


def load_at_another_size(rank, source, folder, local):
    model, optimizer = set_up(source, optimizer_state="8bit")
    chosen, _ = choose_checkpoint(folder, local)
    assert load_checkpoint(chosen, model, optimizer, IDENTITY) == 4 and chosen.parent == folder


def test_a_run_writes_to_its_nodes_first_and_leaves_nothing_there(make_run, tmp_path):
    saving = {"every_steps": 1, "local_folder": str(tmp_path / "fast"), "keep_after_finish": True}
    run = make_run(training={"max_steps": 3}, checkpoint=saving)
    run.train(2)
    assert names(run.folder.checkpoints)[-1] == name_of(3)
    spans = [event for event in read_events(run.folder.events) if isinstance(event, Span)]
    assert [span.detail for span in spans if span.name == "checkpoint_write"].count("local") == 4
    assert list((tmp_path / "fast" / run.folder.identity()).iterdir()) == []
