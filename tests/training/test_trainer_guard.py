"""What the loop does beside its steps: beats, stops in mid-step, saves by time, steps left out, slow ranks."""

import itertools
import math

import pytest
import torch

from tests.runs import packed_rows, run_ranks, write_arrow
from tests.trainers import digest, follow, trainer_of
from training import device_comparison
from training.checkpoint import checkpointer as checkpointer_module
from training.checkpoint.checkpointer import Checkpointer
from training.checkpoint.folders import checkpoints
from training.checkpoint.load import load_checkpoint
from training.config import CheckpointConfig
from training.nonfinite import NonFinite


@pytest.fixture
def samples(tmp_path):
    write_arrow(tmp_path / "rows.arrow", packed_rows(24))
    return tmp_path / "rows.arrow"


def numbers(seen):
    return [event for event in seen if event[0] == "step"]


def stop_in_mid_step(rank, source, samples, folder):
    # Eight samples on two ranks one by one: four micro-batches a step.
    settings = {"max_steps": 6, "global_batch_size": 8}
    quiet = trainer_of(source, samples, **settings)
    _, expected = follow(quiet)
    # In the fourth step, so that the third is saved; and in the third, when the second was saved already.
    for lag, num_done in ((0, 3), (1, 2)):
        stopped = trainer_of(source, samples, lag, **settings)
        place = folder / str(lag)
        checkpointer = Checkpointer(place, stopped.model, stopped.optimizer, {}, CheckpointConfig(), 1)
        calls = itertools.count(1)
        # Asked on one rank, in the second micro-batch; the evaluation after the third step has 12 passes.
        asked_at = 2 if num_done == 2 else 14
        finished, before = follow(
            stopped,
            stop_asked=lambda: rank == 1 and stopped.step == num_done and next(calls) >= asked_at,  # noqa: B023
            checkpointer=checkpointer,
        )
        assert not finished and before[-1] == ("save", num_done, True)
        assert [number for _, number, *_ in numbers(before)] == list(range(1, num_done + 1))
        assert next(calls) == (asked_at + 2 if rank else 1), "the step was left at the next micro-batch"
        assert all(parameter.grad is None for parameter in stopped.model.parameters())
        checkpointer.close(finished=False)
        resumed = trainer_of(source, samples, lag, **settings)
        newest = checkpoints(place)[-1]
        resumed.step = load_checkpoint(newest, resumed.model, resumed.optimizer, {})
        assert resumed.step == num_done
        finished, after = follow(resumed)
        assert finished and numbers(before) + numbers(after) == numbers(expected)
        assert digest(resumed) == digest(quiet)


def save_twice(rank, source, samples, folder):
    written = []
    write = checkpointer_module.write_to_store
    checkpointer_module.write_to_store = lambda *args, **rest: (written.append(args[2]), write(*args, **rest))[1]
    trainer = trainer_of(source, samples, max_steps=3)
    checkpointer = Checkpointer(folder, trainer.model, trainer.optimizer, {}, CheckpointConfig(), 1)
    follow(trainer, stop_asked=lambda: trainer.step == 2, checkpointer=checkpointer)
    checkpointer.close(finished=False)
    assert written == [2] and [path.name for path in checkpoints(folder)] == ["step-00000002"]
    # Nor before the next attempt's first step, unless the state was read from the nodes' own disks.
    for place, expected in ((folder, [2]), (folder / "behind", [2, 2])):
        trainer.step = 2
        checkpointer = Checkpointer(place, trainer.model, trainer.optimizer, {}, CheckpointConfig(), 2)
        finished, _ = follow(trainer, stop_asked=lambda: True, checkpointer=checkpointer)
        checkpointer.close(finished=False)
        assert not finished and written == expected


def test_a_stop_right_after_a_save_does_not_write_it_again(tiny_model, samples, tmp_path):
    run_ranks(2, save_twice, tiny_model, samples, tmp_path)


def test_a_stop_leaves_the_step_between_two_micro_batches_and_costs_no_bit(tiny_model, samples, tmp_path):
    run_ranks(2, stop_in_mid_step, tiny_model, samples, tmp_path)


def stop_elsewhere(rank, source, samples):
    # Before anything was done, there is nothing to save.
    finished, seen = follow(trainer_of(source, samples, max_steps=9), stop_asked=lambda: rank == 0)
    assert not finished and seen == []
    # In the third step's evaluation, which is left.
    trainer = trainer_of(source, samples, max_steps=9)
    finished, seen = follow(trainer, stop_asked=lambda: rank == 0 and trainer.step == 3)
    assert not finished and [event[:2] for event in seen[-2:]] == [("step", 3), ("save", 3)]


def test_a_stop_before_the_first_step_and_in_an_evaluation(tiny_model, samples):
    run_ranks(2, stop_elsewhere, tiny_model, samples)


def skip(rank, source, samples):
    digests = {}
    trainer = trainer_of(source, samples, skipped=frozenset({3}), max_steps=5)
    steps = []

    def keep(step):
        steps.append(step)
        digests[step.step] = digest(trainer)

    finished, _ = follow(trainer, on_step=keep)
    assert finished and [step.step for step in steps] == [1, 2, 3, 4, 5]
    assert [step.skipped for step in steps] == [False, False, True, False, False]
    assert digests[2] == digests[3], "neither weights nor moments have changed"
    assert len(set(digests.values())) == 4
    # The step's loss is that of the samples which were left out.
    whole = trainer_of(source, samples, max_steps=5)
    _, expected = follow(whole)
    assert steps[2].loss == numbers(expected)[2][2] and steps[2].grad_norm == 0
    # Where it is no number, the steps after it are what they are without it.
    poisoned = trainer_of(source, samples, skipped=frozenset({3}), max_steps=5)
    true_loss = poisoned._loss
    poisoned._loss = lambda batch: true_loss(batch) * (math.nan if poisoned.step == 2 else 1)
    _, seen = follow(poisoned)
    assert math.isnan(numbers(seen)[2][2]) and digest(poisoned) == digests[5]
    # Two optimizers that took as many steps agree on how many.
    counts = {float(state["step"]) for state in trainer.optimizer.state.values()}
    assert counts == {4.0}


def test_a_step_that_is_left_out_changes_nothing_to_the_bit(tiny_model, samples):
    run_ranks(2, skip, tiny_model, samples)


def poison(rank, source, samples):
    for lag in (0, 1):
        trainer = trainer_of(source, samples, lag, max_steps=9)
        loss = trainer._loss
        # One micro-batch of one rank.
        trainer._loss = lambda batch: loss(batch) * (math.nan if rank == 1 and trainer.step == 3 else 1)  # noqa: B023
        seen = []
        with pytest.raises(NonFinite, match=r"of step 4 is nan \(rank 1\)") as raised:
            follow(trainer, seen=seen)
        assert raised.value.step == 4
        # The fourth step is one that is saved.
        assert [event[:2] for event in seen] == [
            ("step", 1),
            ("step", 2),
            ("save", 2),
            ("step", 3),
            ("evaluation", 3),
        ]


def test_no_state_that_saw_a_loss_which_is_no_number_is_saved(tiny_model, samples):
    run_ranks(2, poison, tiny_model, samples)


def save_by_time(rank, source, samples):
    for lag in (0, 1):
        trainer = trainer_of(source, samples, lag, every_s=10.0, max_steps=9)
        # The first rank's clock makes four seconds a step; the others' stands still.
        trainer._save_clock._now = lambda: 4.0 * trainer.step if rank == 0 else 0.0  # noqa: B023
        _, seen = follow(trainer)
        saves = [event[1:] for event in seen if event[0] == "save"]
        assert saves == ([(4, False), (8, False), (9, True)] if lag == 0 else [(5, False), (9, True)]), (
            lag,
            saves,
        )
        assert seen.index(("save", saves[0][0], False)) > seen.index(next(e for e in seen if e[1] == saves[0][0]))


def test_all_ranks_save_at_the_step_that_the_first_ranks_clock_names(tiny_model, samples):
    run_ranks(2, save_by_time, tiny_model, samples)


def beats(rank, source, samples):
    told = []
    trainer = trainer_of(source, samples, max_steps=3, beat=lambda part, step: told.append((part, step)))
    follow(trainer)
    # Two micro-batches a step; of the first, its parts may take as long as compiling does.
    assert told[:7] == [("first_step", 0)] * 5 + [("checkpoint", 0), ("first_step", 0)]
    passes = [("forward", 1), ("backward", 1)] * 2
    assert told[7:15] == [("data", 1), *passes, ("checkpoint", 1), ("optimizer", 1), ("checkpoint", 2)]
    assert told[22:] == [("evaluation", 3)] * 12 + [("checkpoint", 3)]


def test_every_part_of_a_step_has_its_beat(tiny_model, samples):
    run_ranks(2, beats, tiny_model, samples)


def slow_rank(rank, source, samples):
    # Many probes in few steps, so that the test is short; and without noise.
    device_comparison._SHARE, device_comparison.NUM_PROBES = 1e9, 4
    trainer = trainer_of(source, samples, max_steps=12)
    trainer.comparison._probe.take = lambda: 0.006 if rank == 1 else 0.003
    _, seen = follow(trainer)
    alerts = [event for event in seen if event[0] == "alert"]
    assert len(alerts) == 1 and alerts[0][1] == 1
    assert alerts[0][3].startswith(
        f"rank 1 on {alerts[0][2]} is slow: it takes 6.0 ms for what takes the others 3.0 ms"
    )
    # At the end of the second window.
    assert seen[seen.index(alerts[0]) - 1][:2] == ("step", 8)


def test_a_slow_rank_is_told_of_in_its_second_window(tiny_model, samples):
    run_ranks(2, slow_rank, tiny_model, samples)


def probe(rank):
    from training.device_probe import DeviceProbe

    made = DeviceProbe(torch.device("cpu"), torch.distributed.group.WORLD)
    counts = [0, 0]
    torch.distributed.all_gather_object(counts, made._num_products)
    assert counts[0] == counts[1], "all ranks do the same work"
    assert made.take() == 0
    before = torch.get_rng_state()
    made.run()
    assert 0 < made.take() < 1 and made.take() == 0
    assert torch.equal(before, torch.get_rng_state())


def test_a_probe_is_the_same_work_on_all_ranks_and_is_taken_once():
    run_ranks(2, probe)
