"""Compare the tuned model of a run with its base: the work of the evaluate step."""

import importlib.metadata
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from components.evaluate.formats import as_count, as_loss, as_perplexity
from components.evaluate.report import ReportData, render_report
from components.evaluate.results import ModelName, ModelResult, load_result, save_result
from components.evaluate.settings import Settings
from components.step import Step
from training.adapter_folder import has_model, is_adapter
from training.config import RunConfig
from training.errors import UserError
from training.events import Evaluation
from training.history import History, read_history
from training.hub import quiet_libraries
from training.run_folder import RunFolder, RunInputs
from training.store import MANIFEST, Store, about, checksum, write_atomically


class MetricsSink(Protocol):
    """What is needed of `kfp.dsl.Metrics`."""

    def log_metric(self, metric: str, value: float) -> None:
        """Record one figure."""


def evaluate_run(step: Step, metrics: MetricsSink, report_path: str | Path) -> None:
    """Measure base and tuned model on the held-out rows, and report.

    The base model's result is kept in the store, where all runs with the same model, data set and settings
    find it; the tuned model's in the run's folder, for as long as the model stays the same.

    Args:
        step: The step at work.
        metrics: Receives the figures.
        report_path: Where the HTML report goes, besides `<run>/evaluation/report.html`.

    Raises:
        UserError: There is no tuned model, or nothing to measure on, or a loss is not finite.
    """
    quiet_libraries()
    folder = step.folder
    inputs, config = folder.inputs(), folder.config()
    if not has_model(folder.model):
        raise UserError(f"the run '{folder.run}' has no tuned model in {folder.model}: run the step train again")
    settings = Settings.of(config)
    base = _base_result(step, inputs, settings)
    save_result(base, folder.evaluation / "base.json")
    tuned = _tuned_result(step, inputs, settings)
    for result in (base, tuned):
        step.write(Evaluation(name=result.name, loss=result.loss, num_supervised=result.num_supervised))

    history = read_history(folder.events)
    for name, value in _figures(base, tuned, history).items():
        metrics.log_metric(name, value)
    html = render_report(_report_data(folder, config, inputs, settings, base, tuned, history))
    write_atomically(folder.evaluation / "report.html", html)
    write_atomically(Path(report_path), html)
    step.detail = f"perplexity {as_perplexity(base.perplexity)} → {as_perplexity(tuned.perplexity)}"


def _base_result(step: Step, inputs: RunInputs, settings: Settings) -> ModelResult:
    store = Store(step.folder.root)
    key = settings.fingerprint(model=inputs.model.name, dataset=inputs.dataset.name)
    published = store.get("evaluations", key)
    known = load_result(published / "base.json") if published is not None else None
    if known is not None:
        _note_loss(step, known, measured_before=True)
        return known
    result = _measure(step, "base", inputs.model, inputs, settings, key)
    with store.publish(
        "evaluations", key, {"model": inputs.model.name, "dataset": inputs.dataset.name}
    ) as staging:
        save_result(result, staging / "base.json")
    return result


def _tuned_result(step: Step, inputs: RunInputs, settings: Settings) -> ModelResult:
    file = step.folder.evaluation / "tuned.json"
    manifest = step.folder.model / MANIFEST
    # A model without a manifest has no identity to compare, so its result is never taken again.
    identity = checksum(manifest) if manifest.is_file() else ""
    key = settings.fingerprint(model=identity, dataset=inputs.dataset.name)
    known = load_result(file) if identity else None
    if known is not None and known.made_from == key:
        _note_loss(step, known, measured_before=True)
        return known
    result = _measure(step, "tuned", step.folder.model, inputs, settings, key)
    save_result(result, file)
    return result


def _measure(
    step: Step, name: ModelName, model: Path, inputs: RunInputs, settings: Settings, made_from: str
) -> ModelResult:
    # Here, because it imports transformers, which results that are at hand do without.
    from components.evaluate.measure import measure

    result = measure(name, model, inputs.dataset, settings, made_from, step.note, base_folder=inputs.model)
    _note_loss(step, result)
    return result


def _note_loss(step: Step, result: ModelResult, measured_before: bool = False) -> None:
    step.note(
        f"held-out loss of the {result.name} model: {as_loss(result.loss)} "
        f"(perplexity {as_perplexity(result.perplexity)}) over {as_count(result.num_supervised)} tokens"
        f"{', measured before' if measured_before else ''}"
    )


def _figures(base: ModelResult, tuned: ModelResult, history: History) -> dict[str, float]:
    figures: dict[str, float | None] = {
        "base_loss": base.loss,
        "tuned_loss": tuned.loss,
        "base_perplexity": base.perplexity,
        "tuned_perplexity": tuned.perplexity,
        "loss_improvement": base.loss - tuned.loss,
        "num_supervised_tokens": tuned.num_supervised,
        "tokens_per_s": history.tokens_per_s,
        "peak_memory_gib": history.peak_memory_gib,
    }
    return {name: value for name, value in figures.items() if value is not None}


def _new_weights(settings: Settings) -> str | None:
    """What the base model's weights are, where they are not the published ones."""
    seed = settings.seed_of_weights
    return None if seed is None else f"new, drawn with the seed {seed}, as the training's were"


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
    settings: Settings,
    base: ModelResult,
    tuned: ModelResult,
    history: History,
) -> ReportData:
    model, dataset = about(inputs.model), about(inputs.dataset)
    ended = datetime.fromtimestamp(history.ended, UTC) if history.ended is not None else datetime.now(UTC)
    lineage: dict[str, Any] = {
        "Base model": model.get("source", config.model.name),
        "Revision of the model": model.get("revision", config.model.revision),
        "Base model in the store": inputs.model.name,
        "Weights of the base model": _new_weights(settings),
        "Tuned model": _form(folder.model, config),
        "Data set": dataset.get("source", config.data.train),
        "Revision of the data": dataset.get("revision", config.data.revision),
        "Data set in the store": inputs.dataset.name,
        "Measured in": f"{settings.precision} on {settings.device.type}",
        "torch": importlib.metadata.version("torch"),
        "transformers": importlib.metadata.version("transformers"),
    }
    return ReportData(
        run=folder.run,
        date=f"{ended.day} {ended:%B %Y, %H:%M} UTC",
        config=config,
        base=base,
        tuned=tuned,
        history=history,
        dataset=dataset,
        lineage={name: str(value) for name, value in lineage.items() if value not in (None, "")},
    )
