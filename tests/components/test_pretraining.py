"""Continued pre-training from text, through the steps that a run takes: from new weights, and with new tokens."""

import math
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from components.download_model.download import download
from components.evaluate.evaluate import evaluate_run
from components.jobs import jobs
from components.step import Step
from components.tokenize_dataset.tokenize import tokenize
from components.train.supervisor import supervise
from tests.components.evaluate.measuring import QuickLauncher
from tests.doubles.models import save_tiny_model, tiny_tokenizer
from tests.runs import Run
from training.config import RunConfig
from training.errors import UserError
from training.run_folder import RunFolder
from training.store import Store, about

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def text(begin, length):
    return " ".join(LETTERS[(begin + n) % 26] for n in range(length))


class Figures(dict):
    def log_metric(self, metric, value):
        self[metric] = value


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Evaluations in forked ranks."""
    monkeypatch.setattr(jobs, "LocalLauncher", QuickLauncher)


@pytest.fixture
def pretrain(tmp_path):
    """Takes a run up to the training, and through the evaluation."""

    def make(rows, source, name="run", **sections):
        (tmp_path / "train.jsonl").write_text("".join(f'{{"text": "{row}"}}\n' for row in rows))
        config = {
            "model": {"name": str(source), **sections.get("model", {})},
            "data": {
                "train": str(tmp_path / "train.jsonl"),
                "format": "text",
                "sequence_length": 32,
                "heldout_fraction": 0.2,
                **sections.get("data", {}),
            },
            "training": {
                "precision": "fp32",
                "max_steps": 40,
                "global_batch_size": 4,
                "micro_batch_size": 2,
                "learning_rate": 0.02,
                **sections.get("training", {}),
            },
            "checkpoint": sections.get("checkpoint", {}),
            "evaluation": {"max_new_tokens": 4},
        }
        folder = RunFolder(Store(tmp_path / "store").root, name)
        folder.create(RunConfig.model_validate(config))
        download(Step("download_model", folder.root, name))
        tokenize(Step("tokenize_dataset", folder.root, name))
        return Run(folder)

    return make


def evaluate(run, tmp_path):
    figures = Figures()
    step = Step("evaluate", run.folder.root, run.folder.run)
    evaluate_run(step, figures, tmp_path / "report.html", tmp_path / "decision.md")
    return figures


@pytest.mark.parametrize("packing", ["best_fit", "none"])
def test_a_model_learns_from_new_weights(packing, pretrain, tmp_path):
    model = save_tiny_model(tmp_path / "model", max_position_embeddings=32)
    (model / "model.safetensors").unlink()
    rows = [text(begin, length) for begin in range(26) for length in (5, 11, 40)]
    run = pretrain(rows, model, model={"init": "random"}, data={"packing": packing})
    facts = about(run.folder.inputs().dataset)
    assert facts["num_split"] > 20
    assert (facts["num_train_samples"] == facts["num_train_documents"]) == (packing == "none")
    run.train(2)
    losses = [step.loss for step in run.steps()]
    # New weights know nothing: every one of the 31 tokens is as likely.
    assert losses[0] == pytest.approx(math.log(31), abs=0.05)
    assert losses[-1] < losses[0] / 2

    figures = evaluate(run, tmp_path)
    assert figures["base_loss"] == pytest.approx(math.log(31), abs=0.05)
    assert figures["tuned_loss"] < losses[0] / 2
    assert "new, drawn with the seed 42" in (tmp_path / "report.html").read_text()
    tuned = AutoModelForCausalLM.from_pretrained(run.folder.model)
    tokenizer = AutoTokenizer.from_pretrained(run.folder.model)
    ids = torch.tensor([tokenizer.encode("c d e f")])
    assert tokenizer.decode(tuned(ids).logits[0, -1].argmax()) == "g"


def test_the_base_of_a_run_is_what_its_ranks_began_with(pretrain, tmp_path):
    model = save_tiny_model(tmp_path / "model")
    rows = [text(begin, 11) for begin in range(26)]
    # A step that changes next to nothing, so that the loss after it is the loss before.
    still = {"max_steps": 1, "learning_rate": 1e-12, "export_dtype": "fp32"}
    first = pretrain(rows, model, "first", model={"init": "random"}, training=still)
    first.train(2)
    second = pretrain(rows, model, "second", model={"init": "random"}, training={**still, "seed": 7})
    second.train(1)
    of_first, of_second = evaluate(first, tmp_path), evaluate(second, tmp_path)
    assert of_first["base_loss"] == pytest.approx(of_first["tuned_loss"], rel=1e-6)
    assert of_second["base_loss"] == pytest.approx(of_second["tuned_loss"], rel=1e-6)
    # The other seed's base is measured anew.
    assert of_first["base_loss"] != of_second["base_loss"]


@pytest.fixture
def with_new_tokens(tmp_path):
    """A model whose tokenizer has two tokens that it has no embeddings for."""
    model = save_tiny_model(tmp_path / "model")
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<|law|>", "<|order|>"])
    tokenizer.save_pretrained(model)
    return model


def test_tokens_without_embeddings_are_refused_by_name_of_the_remedy(pretrain, with_new_tokens):
    run = pretrain([f"{text(begin, 8)} <|law|>" for begin in range(26)], with_new_tokens)
    with pytest.raises(UserError, match=r"the token 31, .* ends at 30.* Set model\.resize_vocabulary to true"):
        supervise(Step("train", run.folder.root, "run"))
    run.train(1, expect=64)
    assert "Set model.resize_vocabulary to true" in run.error()


def test_new_tokens_are_learned_and_exported(pretrain, with_new_tokens, tmp_path):
    rows = [f"{text(begin, length)} <|law|> {text(begin, 3)}" for begin in range(26) for length in (5, 8)]
    run = pretrain(rows, with_new_tokens, model={"resize_vocabulary": True})
    run.train(2)
    losses = [step.loss for step in run.steps()]
    assert losses[-1] < losses[0] / 2
    figures = evaluate(run, tmp_path)
    assert figures["base_loss"] == pytest.approx(losses[0], abs=0.3)
    assert figures["tuned_loss"] < figures["base_loss"] / 2
    tuned = AutoModelForCausalLM.from_pretrained(run.folder.model)
    assert tuned.config.vocab_size == 33
    assert tuned.get_input_embeddings().weight.shape == (33, 16)
    # The token that is in no row moved only by what its tied head was taught: to be unlikely.
    base = AutoModelForCausalLM.from_pretrained(with_new_tokens, dtype=torch.float32)
    law, order = tuned.get_input_embeddings().weight.float()[31:]
    mean = base.get_input_embeddings().weight.mean(0)
    assert (law - mean).norm() > 0.1 and (law - order).norm() > 0.1


def test_a_run_with_new_tokens_resumes(pretrain, with_new_tokens):
    rows = [f"{text(begin, 8)} <|law|>" for begin in range(26)]
    training = {"max_steps": 4, "precision": "fp64", "export_dtype": "fp64"}
    checkpoint = {"every_steps": 2, "keep_after_finish": True}
    sections = {"model": {"resize_vocabulary": True}, "training": training, "checkpoint": checkpoint}
    run = pretrain(rows, with_new_tokens, **sections)
    run.train(2)
    expected = AutoModelForCausalLM.from_pretrained(run.folder.model).state_dict()
    shutil.rmtree(run.folder.model)
    shutil.rmtree(run.folder.checkpoints / "step-00000004")
    run.train(1, attempt=2)
    assert [step.attempt for step in run.steps()] == [1, 1, 2, 2]
    found = AutoModelForCausalLM.from_pretrained(run.folder.model).state_dict()
    assert all(torch.allclose(found[name], value, atol=1e-9) for name, value in expected.items())
