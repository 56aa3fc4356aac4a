import json
import os
import signal
import threading
import time

import psutil
import pytest
import torch

from components.evaluate.evaluate import evaluate_run
from components.step import Interrupted
from training.errors import UserError
from training.events import Evaluation, EventWriter, Note, TrainStep, read_events
from training.measure.request import read_request
from training.store import seal


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


def results(step):
    names = ("base", "tuned")
    return tuple(json.loads((step.folder.evaluation / f"{name}.json").read_text()) for name in names)


def test_everything_is_written(trained_run, evaluate, metrics):
    step = trained_run()
    train_events(step)
    out = evaluate(step)

    base, tuned = results(step)
    assert base["name"] == "base" and tuned["name"] == "tuned"
    assert base["loss"] != tuned["loss"]
    assert base["num_supervised"] == tuned["num_supervised"] > 0
    assert base["num_documents"] == tuned["num_documents"] == 4
    assert tuned["loss_low"] < tuned["loss"] < tuned["loss_high"]
    assert tuned["changes"]["base"]["value"] == pytest.approx(tuned["loss"] - base["loss"])
    assert [g["question"] for g in tuned["generations"]] == ["w0", "w1", "w3"]
    assert set(tuned["generations"][0]) == {"question", "reference", "answer"}
    assert set(tuned["scores"]) == {"exact_match", "rougeL"} and tuned["scores"]["rougeL"]["count"] == 5
    for result in (base, tuned):
        assert result["perplexity"] == pytest.approx(torch.tensor(result["loss"]).exp().item(), rel=1e-5)

    assert metrics == {
        "base_loss": base["loss"],
        "tuned_loss": tuned["loss"],
        "base_perplexity": base["perplexity"],
        "tuned_perplexity": tuned["perplexity"],
        **{
            f"{one['name']}_{score}": one["scores"][score]["value"]
            for one in (base, tuned)
            for score in ("exact_match", "rougeL")
        },
        "loss_improvement": pytest.approx(base["loss"] - tuned["loss"]),
        "num_supervised_tokens": base["num_supervised"],
        "tokens_per_s": 100.0,
        "peak_memory_gib": 4.0,
    }
    report = (out / "report.html").read_text()
    assert report == (step.folder.evaluation / "report.html").read_text()
    assert "org/tiny" in report and "abc123" in report and "1,234" in report

    gate = json.loads((step.folder.evaluation / "gate.json").read_text())
    assert gate["passed"] == (tuned["loss"] < base["loss"]) and gate["champion_version"] is None
    assert gate["reasons"][0] in report and gate["reasons"][0] in (out / "decision.md").read_text()

    events = read_events(step.folder.events)
    assert {e.name: e.loss for e in events if isinstance(e, Evaluation)} == {
        "base": base["loss"],
        "tuned": tuned["loss"],
    }
    assert any(e.text.startswith("held-out loss of the base model: ") for e in events if isinstance(e, Note))
    (warning,) = [e.text for e in events if isinstance(e, Note) and e.level == "warning"]
    assert warning.startswith("only 4 held-out documents were measured")
    assert step.detail.startswith("perplexity ") and " → " in step.detail


def measured_names(jobs_made, step):
    """Models whose results are younger than the last job's request."""
    request = step.folder.evaluation / "request.json"
    files = step.folder.evaluation.glob("measured/*/measured.json")
    return sorted(file.parent.name for file in files if file.stat().st_mtime_ns > request.stat().st_mtime_ns)


def test_one_job_measures_all_models_under_its_own_name(trained_run, evaluate, jobs_made):
    step = trained_run()
    evaluate(step)
    (job,) = jobs_made
    assert (job.name, job.purpose, job.run, job.attempt) == ("a-run-e1", "evaluation", "a-run", 1)
    assert job.command[-1] == str(step.folder.path / "evaluation")
    assert [subject.name for subject in read_request(step.folder)] == ["base", "tuned"]
    assert step.folder.attempts() == [], "attempts are the training's"
    record = json.loads((step.folder.evaluation / "attempts/1/attempt.json").read_text())
    assert record["outcome"] == "succeeded"


def test_runs_of_the_same_settings_share_the_base_result(trained_run, evaluate, jobs_made):
    first = trained_run("first")
    evaluate(first)
    second = trained_run("second")
    evaluate(second)
    assert len(jobs_made) == 2 and measured_names(jobs_made, second) == ["tuned"]
    notes = [event.text for event in read_events(second.folder.events) if isinstance(event, Note)]
    assert [note for note in notes if "measured before" in note] == ["the base model was measured before"]
    assert results(second)[0]["loss"] == results(first)[0]["loss"]
    third = trained_run("third", evaluation={"num_generations": 1, "max_new_tokens": 4})
    evaluate(third)
    assert measured_names(jobs_made, third) == ["base", "tuned"]


def test_nothing_is_measured_twice_and_no_job_starts_until_the_model_changes(
    trained_run, evaluate, metrics, jobs_made, make_model
):
    step = trained_run()
    first = evaluate(step, "1")
    written = (step.folder.evaluation / "tuned.json").stat().st_mtime_ns
    second = evaluate(step, "2")
    assert len(jobs_made) == 1
    assert (step.folder.evaluation / "tuned.json").stat().st_mtime_ns == written
    pages = [(out / "report.html").read_text().split("<main>")[1] for out in (first, second)]
    assert pages[0] == pages[1]

    make_model(2).save_pretrained(step.folder.model)
    seal(step.folder.model, {"run": "a-run"})
    before = metrics["tuned_loss"]
    evaluate(step, "3")
    assert len(jobs_made) == 2 and measured_names(jobs_made, step) == ["tuned"]
    assert metrics["tuned_loss"] != before


def test_a_model_without_a_manifest_is_measured_again(trained_run, evaluate, jobs_made):
    step = trained_run()
    (step.folder.model / "manifest.json").unlink()
    evaluate(step, "1")
    evaluate(step, "2")
    assert len(jobs_made) == 2 and measured_names(jobs_made, step) == ["tuned"]


def test_damaged_results_are_measured_again(trained_run, evaluate, jobs_made):
    step = trained_run()
    evaluate(step, "1")
    (published,) = (step.folder.root / "evaluations").iterdir()
    files = [published / "measured.json", *step.folder.evaluation.glob("measured/*/measured.json")]
    assert len(files) == 3
    for file, content in zip(files, ("", "[]", '{"key": "other"}'), strict=True):
        file.write_text(content)
    evaluate(step, "2")
    assert len(jobs_made) == 2
    # The next run finds what was published anew.
    other = trained_run("other")
    evaluate(other, "3")
    assert measured_names(jobs_made, other) == ["tuned"]
    # What was measured in another precision cannot be compared.
    file = other.folder.evaluation / "measured/base/measured.json"
    file.write_text(file.read_text().replace('"float32"', '"bfloat16"'))
    evaluate(other, "4")
    assert len(jobs_made) == 4 and measured_names(jobs_made, other) == ["base"]


def test_without_events_and_prompts(trained_run, evaluate, metrics):
    out = evaluate(trained_run(prompts=0))
    assert "tokens_per_s" not in metrics and not [name for name in metrics if "rouge" in name]
    report = (out / "report.html").read_text()
    assert "Answers side by side" not in report and "Scores" not in report


def test_missing_tuned_model_names_the_step(trained_run, evaluate):
    with pytest.raises(UserError, match=r"no tuned model.*run the step train again"):
        evaluate(trained_run(tuned=False))


def test_diverged_model_is_said_to_be_one_and_not_tried_again(trained_run, evaluate, jobs_made, make_model):
    step = trained_run()
    model = make_model(1)
    torch.nn.init.constant_(model.model.norm.weight, float("nan"))
    model.save_pretrained(step.folder.model)
    gate = step.folder.evaluation / "gate.json"
    gate.parent.mkdir()
    gate.write_text('{"passed": true, "reasons": []}')
    with pytest.raises(UserError, match=r"tuned model is nan.*training\.learning_rate"):
        evaluate(step)
    assert not (step.folder.evaluation / "tuned.json").exists() and len(jobs_made) == 1
    assert not gate.exists(), "what was decided on another model"
    incidents = [event for event in read_events(step.folder.events) if event.kind == "incident"]
    assert incidents == [], "incidents in the stream are the training's"


def test_a_missing_task_is_told_before_a_job_starts(trained_run, evaluate, jobs_made):
    tasks = {"num_generations": 1, "max_new_tokens": 4, "tasks": ["/no/such/task.yaml"]}
    with pytest.raises(UserError, match=r"/no/such/task\.yaml, which cannot be read.*No such file"):
        evaluate(trained_run(evaluation=tasks))
    assert jobs_made == []


def test_component_runs_in_kfp(trained_run, jobs_made, tmp_path):
    from kfp import dsl

    from components.evaluate.component import evaluate

    step = trained_run()
    metrics = dsl.Metrics(name="metrics", uri=str(tmp_path / "metrics"))
    report = dsl.HTML(name="report", uri=str(tmp_path / "report.html"))
    decision = dsl.Markdown(name="decision", uri=str(tmp_path / "decision.md"))
    evaluate.python_func(
        store=str(step.folder.root),
        run="a-run",
        job="",
        metrics=metrics,
        report=report,
        decision=decision,
        task_config=dsl.TaskConfig(),
    )
    assert metrics.metadata["base_loss"] > 0
    assert (tmp_path / "report.html").is_file()
    assert "The alias champion" in (tmp_path / "decision.md").read_text()
    assert len(jobs_made) == 1


def test_a_stop_leaves_no_process(trained_run, metrics, tmp_path):
    step = trained_run()
    handler = signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(Interrupted()))

    def stop_once_it_starts():
        while not list(step.folder.evaluation.glob("attempts/1/node.log")):
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        threading.Thread(target=stop_once_it_starts, daemon=True).start()
        with pytest.raises(Interrupted):
            evaluate_run(step, metrics, tmp_path / "report.html", tmp_path / "decision.md")
    finally:
        signal.signal(signal.SIGTERM, handler)
    folder = str(step.folder.path / "evaluation")
    assert not [p for p in psutil.process_iter(["cmdline"]) if folder in (p.info["cmdline"] or [])]
    record = json.loads((step.folder.evaluation / "attempts/1/attempt.json").read_text())
    assert record["outcome"] == "interrupted"
