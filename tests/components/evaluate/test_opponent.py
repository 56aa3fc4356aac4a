"""The champion as the tuned model's opponent, and every way in which there is none."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models

from components.evaluate.champion import Opponent, find_opponent
from components.tracking import champion as tracking
from tests.components.evaluate.conftest import WORDS
from training.events import Note, read_events
from training.store import seal


@dataclass
class Holder:
    """What the registry would say."""

    version: str
    folder: Path
    base_folder: Path | None = None
    is_own: bool = False

    def is_of(self, folder):
        return self.is_own


@pytest.fixture
def holder(tmp_path, monkeypatch, make_model, tokenizer):
    """Makes a version hold the alias."""

    def make(seed=5, **facts):
        folder = tmp_path / "champion"
        make_model(seed).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        seal(folder, {"run": "earlier"})
        found = Holder("3", folder, **facts)
        monkeypatch.setattr(tracking, "champion_of", lambda config, store_root, note: found)
        return found

    return make


def content(step, name):
    return json.loads((step.folder.evaluation / name).read_text())


def test_the_champion_is_measured_on_the_same_rows_and_judged(
    trained_run, evaluate, metrics, holder, jobs_made, make_model
):
    champion = holder()
    step = trained_run()
    out = evaluate(step)
    found, tuned, gate = (content(step, name) for name in ("champion.json", "tuned.json", "gate.json"))
    assert found["loss"] == metrics["champion_loss"] and found["num_supervised"] == tuned["num_supervised"]
    assert tuned["changes"]["champion"]["value"] == pytest.approx(tuned["loss"] - found["loss"])
    assert set(tuned["score_changes"]["champion"]) == {"exact_match", "rougeL"}
    assert gate["champion_version"] == "3" and "of version 3, which holds the alias champion" in gate["reasons"][1]
    assert "Change from champion" in (out / "report.html").read_text()
    # Another run finds the measurement in the store.
    evaluate(trained_run("second"), "2")
    assert len(jobs_made) == 2
    make_model(6).save_pretrained(champion.folder)
    other = trained_run("third")
    evaluate(other, "3")
    assert content(other, "champion.json")["loss"] == found["loss"], "it was not loaded again"


def test_a_run_is_not_compared_with_its_own_version(trained_run, holder):
    holder(is_own=True)
    step = trained_run()
    found = find_opponent(step, step.folder.config(), step.folder.inputs())
    reason = "Version 3, which holds the alias champion, is this run's own."
    assert found == Opponent(version="3", reason=reason)


def test_a_champion_that_is_not_wanted_is_not_looked_for(trained_run, holder):
    holder()
    step = trained_run(evaluation={"champion": False})
    found = find_opponent(step, step.folder.config(), step.folder.inputs())
    assert found.champion is None and found.version is None and "evaluation.champion is false" in found.reason


def test_another_tokenizer_makes_losses_that_cannot_be_compared(trained_run, evaluate, holder):
    champion = holder()
    words = {word: number for number, word in enumerate(reversed(WORDS))}
    Tokenizer(models.WordLevel(words, unk_token="[unk]")).save(str(champion.folder / "tokenizer.json"))
    step = trained_run()
    out = evaluate(step)
    gate = content(step, "gate.json")
    assert gate["champion_version"] == "3" and "has another tokenizer" in gate["reasons"][-1]
    report = (out / "report.html").read_text()
    assert "Attention" in report and "has another tokenizer" in report


def truncate(file):
    file.write_bytes(file.read_bytes()[:-100])


def change_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (
            lambda folder: change_config(folder, max_position_embeddings=8),
            "a document of 9 tokens.* has 8",
        ),
        (lambda folder: change_config(folder, max_position_embeddings=32), "max_new_tokens is 40, .* 32 tokens"),
        (lambda folder: change_config(folder, vocab_size=40), "the token 47, and its vocabulary ends at 39"),
        (lambda folder: change_config(folder, model_type="nobody_knows"), "nobody_knows"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "neither model.safetensors nor"),
        (lambda folder: truncate(folder / "model.safetensors"), "[Hh]eader"),
    ],
)
def test_a_champion_that_cannot_be_measured_is_not_compared_with(trained_run, holder, spoil, reason):
    spoil(holder().folder)
    step = trained_run(evaluation={"max_new_tokens": 40})
    found = find_opponent(step, step.folder.config(), step.folder.inputs())
    assert found.champion is None and found.version == "3" and found.is_trouble
    begin = "Version 3, which holds the alias champion, is not compared with: "
    assert found.reason.startswith(begin) and re.search(reason, found.reason), found.reason
    assert found.reason.endswith(".") and not found.reason.endswith("..")


def test_an_adapter_is_looked_at_with_its_base_model(trained_run, holder, tmp_path):
    champion = holder()
    champion.base_folder, champion.folder = champion.folder, tmp_path / "adapter"
    champion.folder.mkdir()
    save_file({"weight": np.zeros(200)}, champion.folder / "adapter_model.safetensors")
    step = trained_run()
    assert find_opponent(step, step.folder.config(), step.folder.inputs()).champion is champion
    truncate(champion.folder / "adapter_model.safetensors")
    found = find_opponent(step, step.folder.config(), step.folder.inputs())
    assert found.champion is None and "is not compared with: " in found.reason


def test_a_registry_that_cannot_be_reached_is_a_warning(trained_run, evaluate, monkeypatch):
    monkeypatch.setattr("components.tracking.connection._FIRST_CONTACT", {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"})
    step = trained_run(registry={"tracking_uri": "http://127.0.0.1:9"})
    out = evaluate(step)
    gate = content(step, "gate.json")
    assert (
        gate["champion_version"] is None
        and "The champion cannot be compared with, so the alias stays with it: " in gate["reasons"][-1]
    )
    assert "Attention" in (out / "report.html").read_text()
    warnings = [e for e in read_events(step.folder.events) if isinstance(e, Note) and e.level == "warning"]
    # The other one is about few held-out documents.
    assert ["127.0.0.1:9" in warning.text for warning in warnings] == [True, False]
    assert "– The champion cannot be compared" in (out / "decision.md").read_text()


def test_a_champion_that_was_compared_with_before_leaves_no_result(trained_run, evaluate, holder, monkeypatch):
    holder()
    step = trained_run()
    evaluate(step)
    monkeypatch.setattr(tracking, "champion_of", lambda config, store_root, note: None)
    evaluate(step, "2")
    assert not (step.folder.evaluation / "champion.json").exists()
    # Without one nothing is said of one.
    gate = content(step, "gate.json")
    assert gate["champion_version"] is None and len(gate["reasons"]) == 1
