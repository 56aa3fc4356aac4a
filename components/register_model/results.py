"""What the earlier steps left in the run folder for this one: measurements, the gate's decision, and a model."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.register_model.decision import Decision, read_decision
from training.adapter_folder import has_model, is_adapter
from training.config import RunConfig
from training.errors import UserError
from training.run_folder import RunFolder, RunInputs


@dataclass(frozen=True)
class Measure:
    """One figure with its 95 % confidence interval.

    Attributes:
        value: The figure.
        low: The interval's lower end; None if there is no interval.
        high: Its upper end.
        count: What it was taken over: documents, answers, examples.
    """

    value: float
    low: float | None = None
    high: float | None = None
    count: int | None = None


@dataclass(frozen=True)
class Measurement:
    """What the evaluate step measured of one model.

    Attributes:
        loss: Held-out loss in nats per supervised token.
        changes: By how much they are higher than the base model's: `loss`, `loss on` a source, and scores by
            their names; of the tuned model alone.
        perplexity: `exp` of the loss.
        num_supervised: Held-out tokens that it was taken over.
        sources: Held-out losses by data source.
        scores: Other measures by name, such as `rougeL` or `arc_easy/acc`.
        measured_at: When, in seconds since the epoch.
    """

    loss: Measure
    changes: Mapping[str, Measure]
    perplexity: float
    num_supervised: int
    sources: Mapping[str, Measure]
    scores: Mapping[str, Measure]
    measured_at: float


@dataclass(frozen=True)
class Results:
    """A run that is ready to be registered.

    Attributes:
        config: The run's config.
        inputs: The folders it trained from.
        is_adapter: Whether the tuned model is an adapter, for use with its base model.
        base: The model before training.
        tuned: The model after it.
        champion: The version that held the alias when the run was evaluated; None if none was measured.
        decision: The gate's.
    """

    config: RunConfig
    inputs: RunInputs
    is_adapter: bool
    base: Measurement
    tuned: Measurement
    champion: Measurement | None
    decision: Decision

    @property
    def improvement(self) -> Measure:
        """By how much the held-out loss fell, in nats per supervised token."""
        change = self.tuned.changes.get("loss")
        if change is None or change.low is None or change.high is None:
            return Measure(self.base.loss.value - self.tuned.loss.value)
        return Measure(-change.value, -change.high, -change.low, change.count)

    @property
    def by_model(self) -> dict[str, Measurement]:
        """The measurements by the model's name."""
        known = {"base": self.base, "champion": self.champion, "tuned": self.tuned}
        return {name: measurement for name, measurement in known.items() if measurement is not None}


def read_results(folder: RunFolder) -> Results:
    """Read the run folder and check that nothing is missing.

    Raises:
        UserError: Names the step that has to run first.
    """
    if not folder.config_file.is_file():
        raise UserError(f"the run '{folder.run}' has no configuration: run the preflight step first")
    inputs = folder.inputs()
    if not has_model(folder.model) or not list(folder.model.glob("*.safetensors")):
        raise UserError(
            f"the tuned model of the run '{folder.run}' is missing ({folder.model}): run the train step again"
        )
    base, tuned = _measurement(folder, "base"), _measurement(folder, "tuned")
    champion = _measurement(folder, "champion") if evaluation_file(folder, "champion").is_file() else None
    return Results(
        config=folder.config(),
        inputs=inputs,
        is_adapter=is_adapter(folder.model),
        base=base,
        tuned=tuned,
        champion=champion,
        decision=read_decision(folder),
    )


def evaluation_file(folder: RunFolder, name: str) -> Path:
    """Where the evaluate step writes the measurement of `base`, `tuned` or `champion`."""
    return folder.evaluation / f"{name}.json"


def _measurement(folder: RunFolder, name: str) -> Measurement:
    file = evaluation_file(folder, name)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"the evaluation of the {name} model is missing in the run '{folder.run}': run the evaluate step first"
        ) from None
    return Measurement(
        loss=Measure(
            _number(content["loss"]), content["loss_low"], content["loss_high"], content["num_documents"]
        ),
        changes=_changes(content),
        perplexity=_number(content["perplexity"]),
        num_supervised=int(content["num_supervised"]),
        sources={source["name"]: _measure(source["loss"]) for source in content["sources"]},
        scores={name: _measure(score) for name, score in content["scores"].items()},
        measured_at=file.stat().st_mtime,
    )


def _changes(content: Mapping[str, Any]) -> dict[str, Measure]:
    found = dict(content["score_changes"].get("base", {}))
    sources = [source for source in content["sources"] if source["changes"]]
    found |= {f"loss on {source['name']}": source["changes"]["base"] for source in sources}
    if content["changes"]:
        found["loss"] = content["changes"]["base"]
    return {name: _measure(change) for name, change in found.items()}


def _measure(content: Mapping[str, Any]) -> Measure:
    return Measure(_number(content["value"]), content["low"], content["high"], content["count"])


def _number(value: float | None) -> float:
    # JSON has no NaN; some writers put null in its place.
    return float("nan") if value is None else float(value)
