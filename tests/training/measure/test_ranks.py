"""What ranks measure is the same whatever their number, and however the model lies on them."""

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

# peft asks transformers for something by its former name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")

TWO_SOURCES = {
    "heldout_sources": [{"name": "first", "num_samples": 1}, {"name": "second", "num_samples": 2}],
}


def plain_losses(model, rows):
    """Of each document with something to predict, by transformers' own cross-entropy, document by document."""
    losses = []
    for row in rows:
        start = 0
        for length in row.lengths:
            part = slice(start, start + length)
            labels = torch.tensor(row.labels[part])
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([row.input_ids[part]])).logits[0]
            if (labels != -100).any():
                losses.append(torch.nn.functional.cross_entropy(logits, labels, reduction="sum").item())
            start += length
    return losses


@pytest.fixture
def settings(task_file):
    def make(sharding):
        return {
            "training": {"precision": "fp64"},
            "evaluation": {
                "num_generations": 2,
                "max_new_tokens": 4,
                "tasks": [str(task_file)],
                "num_fewshot": 0,
                "sharding": sharding,
            },
        }

    return make


def test_one_rank_two_ranks_and_sharded_ones_measure_the_same(
    trained_run, settings, measure, adapter, packed_rows
):
    found = {}
    for ranks, sharding in ((1, "auto"), (2, "none"), (2, "full")):
        step = trained_run(f"run-{ranks}-{sharding}", prompts=19, dataset_facts=TWO_SOURCES, **settings(sharding))
        base = step.folder.inputs().model
        models = {"base": (base, None), "tuned": (step.folder.model, base), "champion": (adapter, base)}
        found[ranks, sharding] = measure(step, ranks, models)
    one = found[1, "auto"]
    assert one["base"].sharding == "none" and found[2, "full"]["base"].sharding == "full"
    assert found[2, "none"]["base"].num_ranks == 2

    whole = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    expected = {"base": plain_losses(whole, packed_rows)}
    expected["champion"] = plain_losses(PeftModel.from_pretrained(whole, str(adapter)), packed_rows)
    for name, losses in expected.items():
        assert one[name].documents.nats == pytest.approx(losses, rel=1e-9)
    assert one["base"].sources == ("first", "second")
    assert one["base"].documents.source.tolist() == [0, 0, 1, 1]
    assert one["base"].documents.num_supervised.sum() == sum(sum(t != -100 for t in r.labels) for r in packed_rows)

    for models in found.values():
        for name, measured in models.items():
            np.testing.assert_allclose(measured.documents.nats, one[name].documents.nats, rtol=1e-9)
            assert measured.answers == one[name].answers
            assert measured.tasks.keys() == {"own_words/acc"} and measured.tasks["own_words/acc"].count == 11
            assert measured.tasks["own_words/acc"].value == pytest.approx(one[name].tasks["own_words/acc"].value)
            assert measured.tasks["own_words/acc"].stderr == pytest.approx(one[name].tasks["own_words/acc"].stderr)
    assert len({tuple(a.answer for a in one[name].answers) for name in one}) == 3, "the models answer alike"
    assert len(one["base"].answers) == 19 and sum(a.is_shown for a in one["base"].answers) == 2
