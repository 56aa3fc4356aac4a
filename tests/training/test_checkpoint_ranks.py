"""What goes wrong on one rank alone: all ranks learn it, and none waits for the others."""

import shutil
import time

import pytest
import torch
import torch.distributed as dist

from tests.checkpointing import saver, set_up, step
from tests.runs import run_ranks
from training.checkpoint import checkpointer, checkpoints, local_tier, space, verifier
from training.checkpoint.choose import choose_checkpoint
from training.checkpoint.folders import name_of
from training.checkpoint.groups import disk_group
from training.checkpoint.local_tier import rank_folder, write_local
from training.checkpoint.state import HostCopy
from training.checkpoint.store_tier import write_to_store
from training.checkpoint.verifier import Verifier
from training.patience import StorageError, is_of_disk


class failing:
    """Lets a function of a module raise on one rank."""

    def __init__(self, module, name, rank):
        self.module, self.name, self.rank = module, name, rank

    def __enter__(self):
        self.function = getattr(self.module, self.name)
        if dist.get_rank() == self.rank:
            setattr(self.module, self.name, self.fail)

    def __exit__(self, *error):
        dist.barrier()
        setattr(self.module, self.name, self.function)

    @staticmethod
    def fail(*args, **kwargs):
        raise OSError(116, "Stale file handle")


def fail_in_the_store(rank, folder):
    group = disk_group()

    def save(number):
        state = {"x": torch.full((4096,), float(number))}
        return write_to_store(state, folder, number, attempt=1, identity={}, group=group)

    kind = OSError if rank == 0 else StorageError
    with failing(space.shutil, "disk_usage", 0), pytest.raises(kind, match="Stale file handle") as caught:
        save(1)
    assert caught.type is kind and is_of_disk(caught.value) == (rank == 0)
    assert save(1) == folder / name_of(1)
    watch = Verifier(folder, 1, 60, pytest.fail, pytest.fail, pytest.fail)
    for number, is_verified in ((2, False), (3, True)):
        save(number)
        with failing(verifier, "damaged_files", 5 if is_verified else 1):
            watch.verify_newest()
            assert watch._background.wait(30)
        assert (watch.take_failure() is None) == is_verified
        dist.barrier()
        assert [path.name for path in checkpoints(folder)] == [
            name_of(n) for n in ((3,) if is_verified else (1, 2))
        ]
        dist.barrier()
    watch.close(finish=False)


def test_a_disk_that_refuses_one_rank_holds_none_up(tmp_path):
    run_ranks(2, fail_in_the_store, tmp_path)


def fail_to_copy(rank, source, folder):
    """Memory may be short on one rank alone."""
    model, optimizer = set_up(source)
    told = []
    saving = saver(folder, model, optimizer, lambda event: told.append(getattr(event, "text", "")))
    step(model, optimizer, 0)
    for number, name in ((1, "of"), (3, "__init__")):
        with failing(HostCopy, name, 1):
            assert saving.save(number)
            saving.wait_for_copy()
            assert saving._front.wait(30), "no rank waits for one that has failed"
        assert saving.save(number + 1), "the next is made at once"
    assert [path.name for path in checkpoints(folder)] == [name_of(2), name_of(4)]
    assert sum("could not be written" in text for text in told) == (2 if rank == 0 else 0)
    # What the first rank alone looks at does not keep the others from verifying.
    saving._has_looked_at_space = False
    with failing(checkpointer, "why_it_fills_up", 0):
        assert saving.save(5) and saving._front.wait(30)
    assert not saving._front.has_failed and saving._verifier._background.wait(30)
    assert saving._verifier._verified == (5 if rank == 0 else 0)
    saving.close(finished=False)


def test_a_rank_that_cannot_copy_its_state_holds_none_up(tiny_model, tmp_path):
    run_ranks(2, fail_to_copy, tiny_model, tmp_path / "checkpoints")


def look_before_writing(rank, source, folder, local):
    model, optimizer = set_up(source)
    saving = saver(folder, model, optimizer, local=local, asynchronous=False)
    step(model, optimizer, 0)
    look, seen = local_tier.check_local_space, []

    def look_late(place, *args):
        time.sleep(rank)
        seen.extend(local.glob("rank-*/*step*"))
        look(place, *args)

    local_tier.check_local_space = look_late
    assert saving.save(1) and seen == [], "what one has written is room that another would miss"
    saving.close(finished=False)


def test_all_ranks_of_a_node_look_for_room_before_one_writes(tiny_model, tmp_path):
    run_ranks(2, look_before_writing, tiny_model, tmp_path / "checkpoints", tmp_path / "node")


def stop_in_an_upload(rank, source, folder, local):
    model, optimizer = set_up(source)
    saving = saver(folder, model, optimizer, local=local)
    step(model, optimizer, 0)
    write, written = checkpointer.write_to_store, []

    def slow(*args, **more):
        time.sleep(1)
        written.append(args[2])
        return write(*args, **more)

    checkpointer.write_to_store = slow
    assert saving.save(1) and saving.save(1, block=True)
    assert written == [1], "it was on its way to the store already"
    assert [path.name for path in folder.iterdir()] == [name_of(1)]
    saving.close(finished=False)


def test_a_stop_while_the_same_state_goes_to_the_store_waits_for_that(tiny_model, tmp_path):
    run_ranks(2, stop_in_an_upload, tiny_model, tmp_path / "checkpoints", tmp_path / "node")


def fail_on_a_node(rank, source, folder, local):
    model, optimizer = set_up(source)
    saving = saver(folder, model, optimizer, local=local)
    step(model, optimizer, 0)
    for number, name, fails_on in ((1, "retain", 0), (3, "open_local", 1)):
        with failing(local_tier, name, fails_on):
            assert saving.save(number)
            assert saving._front.wait(30) and saving._store.wait(30)
        # After a failure the next is made at once, and in the store.
        assert saving.save(number + 1)
    assert [path.name for path in checkpoints(folder)] == [name_of(1), name_of(2), name_of(4)]
    saving.close(finished=False)
    # The node of rank 1 has been away, and still has what was saved before a step was left out.
    dist.barrier()
    for path in rank_folder(local).iterdir():
        shutil.rmtree(path)
    write_local({"x": torch.ones(4)}, rank_folder(local), 9, attempt=2 - rank, identity={})
    assert choose_checkpoint(folder, local)[0] == folder / name_of(4)
    dist.barrier()
    # All that there is was on a node that is gone.
    if rank == 0:
        shutil.rmtree(folder)
    else:
        write_local({"x": torch.ones(4)}, rank_folder(local), 9, attempt=1, identity={})
    dist.barrier()
    said = []
    assert choose_checkpoint(folder, local, said.append) == (None, [])
    assert len(said) == 1 and said[0].endswith("training begins at its first step")


def test_a_node_that_fails_alone_leaves_all_with_the_same(tiny_model, tmp_path):
    run_ranks(2, fail_on_a_node, tiny_model, tmp_path / "checkpoints", tmp_path / "node")
