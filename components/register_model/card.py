"""Markdown for people: the model card of a version, and the summary of the step."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from components.register_model.example import Example
from components.register_model.lineage import Lineage, Source
from components.register_model.results import Measure, Results
from training.config import RunConfig
from training.events import TrainStep


def model_card(
    run: str,
    results: Results,
    lineage: Lineage,
    dataset: Mapping[str, Any],
    steps: Sequence[TrainStep],
    example: Example,
    version: str = "VERSION",
) -> str:
    """Describe a version: base model, data, recipe, measurements, licence, how to load it.

    Args:
        run: The run's name.
        results: Config and measurements.
        lineage: Where it comes from.
        dataset: What the data set's manifest records.
        steps: The steps that it was trained for.
        example: What it can be asked.
        version: Its number, once that is known.
    """
    config = results.config
    training, parallel = config.training, config.parallel
    length = config.data.sequence_length
    samples = "samples" if config.data.packing == "none" else "packed samples"
    made = "trained from new weights" if config.model.init == "random" else "fine-tuned"
    licence = f"licence {lineage.model.license}" if lineage.model.license else "its licence is not recorded"
    lines = [
        f"`{config.model.name}` {made} on `{config.data.train_name}` by Shardline, in the run `{run}`.",
        "",
        f"- **Base model**: {_source(lineage.model)}, {licence}",
        f"- **Data**: {_data(lineage.dataset, dataset)}, {samples} of at most {length} tokens",
        *_sources(dataset),
        f"- **Training**: {_steps(steps)}{_adapters(config)}AdamW, peak learning rate {training.learning_rate:g} "
        f"({training.schedule}), global batch of {training.global_batch_size} {samples}, precision "
        f"{training.precision}, {parallel.strategy}, seed {training.seed}",
    ]
    if lineage.commit is not None:
        changed = " with local changes" if lineage.commit.dirty else ""
        lines.append(f"- **Code**: commit {lineage.commit.sha}{changed}")
    return "\n".join(
        [
            *lines,
            "",
            *measurements(results),
            "",
            "To load it:",
            "",
            *_how_to_load(results, lineage.model, example, version),
        ]
    )


def card_facts(results: Results, lineage: Lineage) -> dict[str, Any]:
    """What a card says to programs, in the words of the Hugging Face hub."""
    facts = {
        "base_model": lineage.model.name,
        "license": lineage.model.license,
        "library_name": "peft" if results.is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "datasets": [source.source for source in results.config.data.train_sources],
        "tags": ["shardline"],
    }
    return {name: value for name, value in facts.items() if value}


def measurements(results: Results) -> list[str]:
    """All measurements as lines of a Markdown table, with the 95 % confidence intervals that there are."""
    models = results.by_model
    names = list(models)
    tokens = f"{results.tuned.num_supervised:,} tokens"
    lines = [
        f"| held-out, {tokens} | {' | '.join(names)} | tuned − base |",
        f"|---|{'---:|' * (len(names) + 1)}",
    ]
    changes = results.tuned.changes
    rows: list[tuple[str, dict[str, Measure], Measure | None]] = [
        ("loss (nats per token)", {name: model.loss for name, model in models.items()}, changes.get("loss")),
        ("perplexity", {name: Measure(model.perplexity) for name, model in models.items()}, None),
    ]
    if len(results.tuned.sources) > 1:
        for source in results.tuned.sources:
            losses = {name: model.sources[source] for name, model in models.items() if source in model.sources}
            rows.append((f"loss on {source}", losses, changes.get(f"loss on {source}")))
    for score in results.tuned.scores:
        values = {name: model.scores[score] for name, model in models.items() if score in model.scores}
        rows.append((score, values, changes.get(score)))
    for title, values, difference in rows:
        cells = [_cell(values.get(name)) for name in names]
        if difference is None and "base" in values:
            difference = Measure(values["tuned"].value - values["base"].value)
        lines.append(f"| {' | '.join([title.replace('|', '/'), *cells, _cell(difference, '+')])} |")
    return lines


def step_summary(headline: str, reasons: Sequence[str], results: Results, tracking: str, run_id: str) -> str:
    """The step's decision with its reasons.

    Args:
        headline: Version and alias.
        reasons: The gate's.
        results: The measurements.
        tracking: Tracking URI without credentials.
        run_id: The MLflow run.
    """
    lines = [
        f"**{headline}**",
        "",
        *measurements(results),
        "",
        *(f"- {reason}" for reason in reasons),
        "",
        f"MLflow run `{run_id}` at `{tracking}`",
    ]
    return "\n".join(lines) + "\n"


def _cell(measure: Measure | None, sign: str = "") -> str:
    if measure is None:
        return ""
    value = _figure(measure.value, sign)
    if measure.low is None or measure.high is None:
        return value
    return f"{value} ({_figure(measure.low, sign)} to {_figure(measure.high, sign)})"


def _figure(value: float, sign: str) -> str:
    return f"{value:{sign},.0f}" if 1000 <= abs(value) < 1e7 else f"{value:{sign}.4g}"


def _source(source: Source) -> str:
    revision = f" at revision `{source.revision}`" if source.revision else ""
    return f"`{source.name}`{revision} (fingerprint `{source.fingerprint}`)"


def _data(source: Source, dataset: Mapping[str, Any]) -> str:
    """The data set; where its sources are listed, the revisions stand there."""
    return _source(replace(source, revision=None) if dataset.get("train_sources") else source)


def _sources(dataset: Mapping[str, Any]) -> list[str]:
    """A line for each source that was trained on."""
    lines = []
    for source in dataset.get("train_sources", []):
        revision = f" at revision `{source['revision']}`" if source.get("revision") else ""
        lines.append(
            f"    - `{source['name']}`{revision}: {source['form']}, {source['num_rows']:,} rows, "
            f"{source['num_tokens']:,} tokens"
        )
    return lines


def _adapters(config: RunConfig) -> str:
    if config.training.method != "lora":
        return ""
    return f"LoRA adapters of rank {config.lora.rank} and alpha {config.lora.alpha:g}, "


def _how_to_load(results: Results, base: Source, example: Example, version: str) -> list[str]:
    """Lines that say how the version is used."""
    uri = f"models:/{results.config.registry.model_name}/{version}"
    lines = [
        "```python",
        "import mlflow",
        "",
        f"pipeline = mlflow.transformers.load_model({uri!r})",
        f"model = mlflow.pyfunc.load_model({uri!r})",
        f"answers = model.predict({dict(example.content)!r})",
        "```",
    ]
    if not results.is_adapter:
        return lines
    revision = f", revision={base.revision!r}" if base.revision else ""
    call = f"AutoModelForCausalLM.from_pretrained({base.name!r}{revision})"
    if base.name.endswith(".gguf"):
        # It was converted, and only the result is in the format that an adapter goes with.
        call = f"AutoModelForCausalLM.from_pretrained('STORE/models/{base.fingerprint}')"
    return [
        "This version is an adapter, which works only together with its base model. MLflow looks for that where "
        "it was when the adapter was trained; elsewhere, give `mlflow.transformers.load_model` its folder as "
        "`base_model_path`:",
        "",
        *lines,
        "",
        "Or without MLflow:",
        "",
        "```python",
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM",
        "",
        f"base = {call}",
        "model = PeftModel.from_pretrained(base, 'FOLDER/peft')  # of this version",
        "```",
    ]


def _steps(steps: Sequence[TrainStep]) -> str:
    return f"{steps[-1].step} steps to a training loss of {steps[-1].loss:.4g}, " if steps else ""
