import json

import pytest
import torch

from components.evaluate import measure as measure_module
from components.evaluate.evaluate import evaluate_run
from training.errors import UserError
from training.events import Evaluation, EventWriter, Note, TrainStep, read_events
from training.store import seal


@pytest.fixture
def loaded(monkeypatch):
    """Folders that models were loaded from."""
    folders = []
    load = measure_module.load_model

    def recorded(folder, *args):
        folders.append(folder.name)
        return load(folder, *args)

    monkeypatch.setattr(measure_module, "load_model", recorded)
    return folders


def train_events(step, count=3):
    writer = EventWriter(step.folder.events, "rank-0", attempt=1)
    for number in range(1, count + 1):
        writer.write(
            TrainStep(
                step=number,
                num_steps=count,
                loss=4 - number / 10,
                grad_norm=1.0,
                learning_rate=1e-4,
                num_tokens=100,
                num_supervised=40,
                seconds=[2.0, 1.0, 0.5][number % 3],
                memory_gib=1.0 + number,
            )
        )
    writer.close()


def test_everything_is_written(trained_run, metrics, tmp_path):
    step = trained_run()
    train_events(step)
    evaluate_run(step, metrics, tmp_path / "artifacts" / "report")

    base, tuned = (json.loads((step.folder.evaluation / f"{name}.json").read_text()) for name in ("base", "tuned"))
    assert base["name"] == "base" and tuned["name"] == "tuned"
    assert base["loss"] != tuned["loss"]
    assert base["num_supervised"] == tuned["num_supervised"] > 0
    assert [g["question"] for g in tuned["generations"]] == ["w0", "w1", "w3"]
    assert set(tuned["generations"][0]) == {"question", "reference", "answer"}
    for result in (base, tuned):
        assert result["perplexity"] == pytest.approx(torch.tensor(result["loss"]).exp().item(), rel=1e-5)

    assert metrics == {
        "base_loss": base["loss"],
        "tuned_loss": tuned["loss"],
        "base_perplexity": base["perplexity"],
        "tuned_perplexity": tuned["perplexity"],
        "loss_improvement": pytest.approx(base["loss"] - tuned["loss"]),
        "num_supervised_tokens": base["num_supervised"],
        "tokens_per_s": 100.0,
        "peak_memory_gib": 4.0,
    }
    report = (tmp_path / "artifacts" / "report").read_text()
    assert report == (step.folder.evaluation / "report.html").read_text()
    assert "org/tiny" in report and "abc123" in report and "1,234" in report

    events = read_events(step.folder.events)
    assert {e.name: e.loss for e in events if isinstance(e, Evaluation)} == {
        "base": base["loss"],
        "tuned": tuned["loss"],
    }
    assert any(e.text.startswith("held-out loss of the base model: ") for e in events if isinstance(e, Note))
    assert step.detail.startswith("perplexity ") and " → " in step.detail


def test_second_run_takes_the_base_result_from_the_store(trained_run, metrics, tmp_path, loaded):
    evaluate_run(trained_run("first"), metrics, tmp_path / "1.html")
    assert loaded == ["m1", "model"]
    second = trained_run("second")
    evaluate_run(second, metrics, tmp_path / "2.html")
    assert loaded == ["m1", "model", "model"]
    assert (second.folder.evaluation / "base.json").is_file()


def test_base_result_is_not_shared_across_settings(trained_run, metrics, tmp_path, loaded):
    evaluate_run(trained_run("first"), metrics, tmp_path / "1.html")
    other = {"num_generations": 1, "max_new_tokens": 4}
    evaluate_run(trained_run("second", evaluation=other), metrics, tmp_path / "2.html")
    assert loaded == ["m1", "model", "m1", "model"]


def test_tuned_result_is_reused_until_the_model_changes(trained_run, metrics, tmp_path, loaded, make_model):
    step = trained_run()
    evaluate_run(step, metrics, tmp_path / "1.html")
    evaluate_run(step, metrics, tmp_path / "2.html")
    assert loaded == ["m1", "model"]
    assert (tmp_path / "1.html").read_text().split("<main>")[1] == (tmp_path / "2.html").read_text().split(
        "<main>"
    )[1]

    make_model(2).save_pretrained(step.folder.model)
    seal(step.folder.model, {"run": "a-run"})
    before = metrics["tuned_loss"]
    evaluate_run(step, metrics, tmp_path / "3.html")
    assert loaded == ["m1", "model", "model"]
    assert metrics["tuned_loss"] != before


def test_a_model_without_a_manifest_is_measured_again(trained_run, metrics, tmp_path, loaded):
    step = trained_run()
    (step.folder.model / "manifest.json").unlink()
    evaluate_run(step, metrics, tmp_path / "1.html")
    evaluate_run(step, metrics, tmp_path / "2.html")
    assert loaded == ["m1", "model", "model"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"perplexity": 1, "generations": [{}]}'])
def test_damaged_results_are_measured_again(trained_run, metrics, tmp_path, loaded, content):
    step = trained_run()
    evaluate_run(step, metrics, tmp_path / "1.html")
    (published,) = (step.folder.root / "evaluations").iterdir()
    for file in (published / "base.json", step.folder.evaluation / "tuned.json"):
        file.write_text(content)
    evaluate_run(step, metrics, tmp_path / "2.html")
    evaluate_run(step, metrics, tmp_path / "3.html")
    assert loaded == ["m1", "model", "m1", "model"]


def test_without_events_and_prompts(trained_run, metrics, tmp_path):
    evaluate_run(trained_run(prompts=0), metrics, tmp_path / "report.html")
    assert "tokens_per_s" not in metrics
    assert "Answers side by side" not in (tmp_path / "report.html").read_text()


def test_missing_tuned_model_names_the_step(trained_run, metrics, tmp_path):
    with pytest.raises(UserError, match=r"no tuned model.*run the step train again"):
        evaluate_run(trained_run(tuned=False), metrics, tmp_path / "report.html")


def test_diverged_model_is_said_to_be_one(trained_run, metrics, tmp_path, make_model):
    step = trained_run()
    model = make_model(1)
    torch.nn.init.constant_(model.model.norm.weight, float("nan"))
    model.save_pretrained(step.folder.model)
    with pytest.raises(UserError, match=r"tuned model is nan.*training\.learning_rate"):
        evaluate_run(step, metrics, tmp_path / "report.html")
    assert not (step.folder.evaluation / "tuned.json").exists()


def test_component_runs_in_kfp(trained_run, tmp_path):
    from kfp import dsl

    from components.evaluate.component import evaluate

    step = trained_run()
    metrics = dsl.Metrics(name="metrics", uri=str(tmp_path / "metrics"))
    report = dsl.HTML(name="report", uri=str(tmp_path / "report.html"))
    evaluate.python_func(store=str(step.folder.root), run="a-run", metrics=metrics, report=report)
    assert metrics.metadata["base_loss"] > 0
    assert (tmp_path / "report.html").is_file()
