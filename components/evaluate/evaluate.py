"""Compare the tuned model of a run with its base and with the champion: the work of the evaluate step."""

import importlib.metadata
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from components.evaluate.champion import Opponent, find_opponent
from components.evaluate.decision import Decision, as_markdown, decide, save_decision
from components.evaluate.formats import as_count, as_interval, as_loss, as_perplexity
from components.evaluate.job import measure
from components.evaluate.report import ReportData, render_report
from components.evaluate.results import ModelResult, result_of, save_result
from components.evaluate.subjects import subjects_of
from components.jobs.describe import TaskSettings
from components.step import Step
from training.adapter_folder import has_model, is_adapter
from training.config import RunConfig
from training.errors import UserError
from training.events import Evaluation
from training.history import History, read_history
from training.hub import quiet_libraries
from training.ledger import Ledger, goodput_line
from training.measure.measured import Measured
from training.measure.request import ModelName
from training.measure.task_files import check_tasks
from training.run_folder import RunFolder, RunInputs
from training.store import about, write_atomically

_FEW_DOCUMENTS = 30
"""Below it, resampling tells little of how uncertain a mean is."""


class MetricsSink(Protocol):
    """What is needed of `kfp.dsl.Metrics`."""

    def log_metric(self, metric: str, value: float) -> None:
        """Record one figure."""


def evaluate_run(
    step: Step,
    metrics: MetricsSink,
    report_path: str | Path,
    decision_path: str | Path,
    task: TaskSettings | None = None,
    job: str = "",
) -> None:
    """Measure base model, tuned model and champion on the held-out rows, let the gate decide, and report.

    A model that was measured before under the same settings is not measured again: results of base model and
    champion are kept in the store, where all runs find them; the tuned model's in the run's folder, for as long as
    the model stays the same.

    Args:
        step: The step at work.
        metrics: Receives the figures.
        report_path: Where the HTML report goes, besides `<run>/evaluation/report.html`.
        decision_path: Where the gate's decision goes as Markdown.
        task: Settings of the KFP task, for the pods of a cluster job.
        job: Name of the pipeline job.

    Raises:
        UserError: There is no tuned model, or nothing to measure on, or a loss is not finite.
        StepFailed: The job that measures failed as often as it may.
    """
    quiet_libraries()
    folder = step.folder
    inputs, config = folder.inputs(), folder.config()
    if not has_model(folder.model):
        raise UserError(f"the run '{folder.run}' has no tuned model in {folder.model}: run the step train again")
    check_tasks(config.evaluation.tasks)
    opponent = find_opponent(step, config, inputs)
    if opponent.is_trouble:
        step.warn(opponent.reason)
    subjects = subjects_of(folder, config, inputs, opponent.champion)
    # A decision must not outlive what it was reached on.
    (folder.evaluation / "gate.json").unlink(missing_ok=True)
    # What was set on the task train alone, as its GPUs, is meant for these pods too.
    pods = (task or TaskSettings()).or_saved(folder)
    measured = measure(step, config, subjects, pods, job)
    results = _results(measured)
    for result in results.values():
        save_result(result, folder.evaluation / f"{result.name}.json")
        step.write(Evaluation(name=result.name, loss=result.loss, num_supervised=result.num_supervised))
        _note_loss(step, result)
    if results["tuned"].num_documents < _FEW_DOCUMENTS:
        step.warn(
            f"only {results['tuned'].num_documents} held-out documents were measured, so figures and decision are "
            "uncertain: hold out more by data.heldout or data.heldout_fraction"
        )
    if "champion" not in results:
        (folder.evaluation / "champion.json").unlink(missing_ok=True)
    _decide_and_report(step, config, inputs, results, opponent, metrics, Path(report_path), Path(decision_path))


def _results(measured: dict[ModelName, Measured]) -> dict[ModelName, ModelResult]:
    others = tuple(one for name, one in measured.items() if name != "tuned")
    return {name: result_of(one, others if name == "tuned" else ()) for name, one in measured.items()}


def _decide_and_report(
    step: Step,
    config: RunConfig,
    inputs: RunInputs,
    results: dict[ModelName, ModelResult],
    opponent: Opponent,
    metrics: MetricsSink,
    report_path: Path,
    decision_path: Path,
) -> None:
    folder = step.folder
    base, tuned = results["base"], results["tuned"]
    decision = decide(config.registry, tuned, base, results.get("champion"), opponent)
    save_decision(folder, decision, (folder.evaluation / "tuned.json").stat().st_mtime)
    history = read_history(folder.events)
    for name, value in _figures(results, history).items():
        metrics.log_metric(name, value)
    html = render_report(_report_data(folder, config, inputs, results, decision, history))
    write_atomically(folder.evaluation / "report.html", html)
    write_atomically(report_path, html)
    change = f"perplexity {as_perplexity(base.perplexity)} → {as_perplexity(tuned.perplexity)}"
    write_atomically(decision_path, as_markdown(decision, f"Held-out {change}."))
    step.note(f"{decision.headline} {' '.join(decision.reasons)}")
    step.detail = change


def _note_loss(step: Step, result: ModelResult) -> None:
    interval = as_interval(result.estimate, as_loss)
    step.note(
        f"held-out loss of the {result.name} model: {as_loss(result.loss)}{interval and f' {interval}'} "
        f"(perplexity {as_perplexity(result.perplexity)}) over {as_count(result.num_supervised)} tokens"
    )


def _figures(results: dict[ModelName, ModelResult], history: History) -> dict[str, float]:
    figures: dict[str, float | None] = {}
    for name, result in results.items():
        figures[f"{name}_loss"] = result.loss
        figures[f"{name}_perplexity"] = result.perplexity
        for score, estimate in result.scores.items():
            figures[f"{name}_{score.replace('/', '_')}"] = estimate.value
    figures |= {
        "loss_improvement": results["base"].loss - results["tuned"].loss,
        "num_supervised_tokens": results["tuned"].num_supervised,
        "tokens_per_s": history.tokens_per_s,
        "peak_memory_gib": history.peak_memory_gib,
    }
    # JSON has no number for what a task could not tell.
    return {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}


def _new_weights(config: RunConfig) -> str | None:
    """What the base model's weights are, where they are not the published ones."""
    if config.model.init != "random":
        return None
    return f"new, drawn with the seed {config.training.seed}, as the training's were"


def _form(model: Path, config: RunConfig) -> str | None:
    """What kind of a tuned model it is, where there is more to say than that it is one."""
    if is_adapter(model):
        return f"LoRA adapter of rank {config.lora.rank}, of use only on the base model"
    if config.training.method == "lora":
        return f"whole, with a LoRA adapter of rank {config.lora.rank} merged into the base model"
    return None


def _report_data(
    folder: RunFolder,
    config: RunConfig,
    inputs: RunInputs,
    results: dict[ModelName, ModelResult],
    decision: Decision,
    history: History,
) -> ReportData:
    model, dataset = about(inputs.model), about(inputs.dataset)
    champion = decision.champion_version
    ended = datetime.fromtimestamp(history.ended, UTC) if history.ended is not None else datetime.now(UTC)
    lineage: dict[str, Any] = {
        "Base model": model.get("source", config.model.name),
        "Revision of the model": model.get("revision", config.model.revision),
        "Base model in the store": inputs.model.name,
        "Weights of the base model": _new_weights(config),
        "Tuned model": _form(folder.model, config),
        "Data set": config.data.train_name,
        "Revision of the data": dataset.get("revision", config.data.revision),
        "Data set in the store": inputs.dataset.name,
        "Champion": champion and f"{config.registry.model_name} version {champion}",
        "Measured in": results["tuned"].measured_in,
        "torch": importlib.metadata.version("torch"),
        "transformers": importlib.metadata.version("transformers"),
    }
    totals = Ledger.of(folder).totals
    return ReportData(
        run=folder.run,
        date=f"{ended.day} {ended:%B %Y, %H:%M} UTC",
        config=config,
        results=results,
        decision=decision,
        history=history,
        dataset=dataset,
        lineage={name: str(value) for name, value in lineage.items() if value not in (None, "")},
        goodput="" if totals is None else goodput_line(totals),
    )
