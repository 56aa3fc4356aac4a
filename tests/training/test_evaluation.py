"""The held-out loss that all ranks take together."""

import pytest
import torch

from tests.runs import as_sample, packed_rows, run_ranks, write_arrow
from training.build import build_model
from training.config import RunConfig
from training.data import PackedDataset, collate, num_supervised
from training.errors import UserError
from training.evaluation import heldout_loss
from training.events import Evaluation, read_events
from training.head import SummedLoss
from training.model import load_weights

CPU = torch.device("cpu")
CONFIG = RunConfig.model_validate({"model": {"name": "org/tiny"}, "data": {"train": "org/data"}})


def one_process_loss(model, samples):
    """Sample by sample, summed in Python."""
    loss = SummedLoss(model)
    with torch.no_grad():
        total = sum(loss(collate([sample], CPU)).item() for sample in samples)
    supervised = num_supervised(samples)
    return total / supervised, supervised


def evaluate(rank, source, samples, micro_batch_size, max_samples, expected):
    model = build_model(CONFIG, source, CPU, torch.float64)
    load_weights(model, source)
    found = heldout_loss(
        model,
        SummedLoss(model),
        PackedDataset(samples),
        CPU,
        micro_batch_size=micro_batch_size,
        max_samples=max_samples,
    )
    assert found == (pytest.approx(expected[0], rel=1e-12), expected[1])
    assert model.training


# Numbers of samples that leave ranks with one less than the others, with one alone, and with none.
@pytest.mark.parametrize(
    ("world_size", "num_samples", "micro_batch_size", "max_samples"),
    [(2, 5, 1, None), (3, 4, 1, None), (3, 1, 2, None), (2, 7, 2, None), (2, 7, 2, 3)],
)
def test_uneven_shares_cannot_hang_and_give_the_loss_of_one_process(
    world_size, num_samples, micro_batch_size, max_samples, tiny_model, tmp_path
):
    from transformers import AutoModelForCausalLM

    rows = packed_rows(num_samples)
    path = tmp_path / "heldout.arrow"
    write_arrow(path, rows)
    plain = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="documents", dtype=torch.float64)
    expected = one_process_loss(plain, [as_sample(row) for row in rows[:max_samples]])
    run_ranks(world_size, evaluate, tiny_model, path, micro_batch_size, max_samples, expected)


def evaluate_nothing(rank, source, samples):
    model = build_model(CONFIG, source, CPU, torch.float64)
    load_weights(model, source)
    with pytest.raises(UserError, match="none of the 2 held-out samples has a token to predict"):
        heldout_loss(model, SummedLoss(model), PackedDataset(samples), CPU, micro_batch_size=1)


def test_nothing_to_predict_is_said_in_words(tiny_model, tmp_path):
    rows = packed_rows(2)
    for row in rows:
        row["labels"][:] = -100
    write_arrow(tmp_path / "heldout.arrow", rows)
    run_ranks(2, evaluate_nothing, tiny_model, tmp_path / "heldout.arrow")


def test_a_run_evaluates_while_it_trains_and_trains_the_same(make_run):
    settings = {"max_steps": 5, "learning_rate": 0.01}
    quiet = make_run("quiet", training=settings)
    quiet.train(2)
    run = make_run("evaluated", training=settings, evaluation={"every_steps": 2, "max_samples": 5})
    write_arrow(run.folder.inputs().dataset / "heldout.arrow", packed_rows(7, seed=9))
    run.train(2)
    found = [e for e in read_events(run.folder.events) if isinstance(e, Evaluation)]
    assert [(e.name, e.step) for e in found] == [("step", 2), ("step", 4)]
    assert found[1].loss != found[0].loss
    assert [s.loss for s in run.steps()] == [s.loss for s in quiet.steps()]
    assert [s.evaluation_s > 0 for s in run.steps()] == [False, False, True, False, True]
