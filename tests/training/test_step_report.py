"""What a step says of itself, read at once and a step late, as accelerators are."""

import math
from dataclasses import replace

import pytest
import torch

from tests.runs import packed_rows, run_ranks, write_arrow
from tests.trainers import follow, trainer_of
from training.clock import PhaseClock
from training.config import RunConfig
from training.nonfinite import NonFinite, check_step
from training.step_report import PendingReport, RankCounts, StepReport

CPU = torch.device("cpu")


def compare_lags(rank, source, samples):
    at_once = follow(trainer_of(source, samples, 0, max_steps=7))
    late = follow(trainer_of(source, samples, 1, max_steps=7))
    assert at_once[0] and late[0]
    # The numbers are the same, and nothing is saved or evaluated before its step was read.
    assert [e for e in late[1] if e[0] == "step"] == [e for e in at_once[1] if e[0] == "step"]
    assert [e for e in late[1] if e[0] != "step"] == [e for e in at_once[1] if e[0] != "step"]
    for seen in (at_once[1], late[1]):
        read = 0
        for kind, step, *_ in seen:
            read = step if kind == "step" else read
            assert read == step, seen


def test_reading_late_changes_no_number_and_no_order(tiny_model, tmp_path):
    write_arrow(tmp_path / "rows.arrow", packed_rows(9))
    run_ranks(2, compare_lags, tiny_model, tmp_path / "rows.arrow")


def stop_and_fail(rank, source, samples):
    for lag in (0, 1):
        trainer = trainer_of(source, samples, lag, max_steps=30)
        finished, seen = follow(trainer, stop_asked=lambda t=trainer: rank == 1 and t.step >= 4)
        # Asked for in the fifth step, which is left between its two micro-batches.
        assert not finished and seen[-2:] == [("save", 4, False), ("save", 4, True)]
        trainer = trainer_of(source, samples, lag, max_steps=30, learning_rate=1e30, warmup_ratio=0)
        seen = []
        with pytest.raises(NonFinite, match=r"lower training\.learning_rate") as raised:
            follow(trainer, seen=seen)
        last = seen[-1][1] if seen else 0
        assert raised.value.step == last + 1
        assert ("save", last + 1, False) not in seen, "a step whose loss is not finite is not saved"


def test_stops_and_bad_losses_are_seen_before_a_save_on_all_ranks(tiny_model, tmp_path):
    write_arrow(tmp_path / "rows.arrow", packed_rows(9))
    run_ranks(2, stop_and_fail, tiny_model, tmp_path / "rows.arrow")


def gather(rank):
    clock = PhaseClock(CPU)
    clock.mark("data")
    # Rank 0 has 3 tokens at 2 nats, rank 1 has 1 at 6, rank 2 none; each has divided by all 4.
    shares, supervised = [6 / 4, 6 / 4, 0.0], [3, 1, 0]
    probe_s = [0.0, 0.25, 0.5][rank]
    counts = RankCounts(supervised[rank], 10 + rank, 12, 100, 7 - rank, probe_s, rank == 0, wants_probe=rank == 2)
    report = PendingReport(torch.tensor(shares[rank]), torch.tensor(0.5), counts, clock).read()
    assert report.loss == 3.0 and report.grad_norm == 0.5
    assert report.rank_losses == [2.0, 6.0, None]
    assert (report.supervised, report.tokens, report.positions) == (4, 33, 36)
    assert (report.squared_lengths, report.memory_bytes) == (300, 7)
    # The first rank's clock counts for all.
    assert (report.probe_s, report.wants_save, report.wants_probe) == ([0.0, 0.25, 0.5], True, False)
    assert set(report.seconds) == {"data"}


def test_numbers_of_all_ranks_are_summed_and_the_worst_is_known():
    run_ranks(3, gather)


def test_the_rank_whose_loss_is_bad_is_named():
    config = RunConfig.model_validate({"model": {"name": "m"}, "data": {"train": "d"}})
    numbers = {"supervised": 4, "tokens": 4, "positions": 4, "squared_lengths": 4, "memory_bytes": 1}
    bad = StepReport(
        loss=math.nan,
        rank_losses=[1.0, math.nan, None],
        grad_norm=math.nan,
        probe_s=[],
        wants_save=False,
        wants_probe=False,
        seconds={},
        **numbers,
    )
    with pytest.raises(NonFinite, match=r"the loss of step 3 is nan \(rank 1\) and"):
        check_step(bad, 3, config)
    with pytest.raises(NonFinite, match=r"the loss of step 3 is 2 and the gradient norm inf"):
        check_step(replace(bad, loss=2.0, rank_losses=[2.0, None], grad_norm=math.inf), 3, config)
