"""What the earlier steps left in the run folder for this one: two measurements and a model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.adapter_folder import has_model, is_adapter
from training.config import RunConfig
from training.errors import UserError
from training.run_folder import RunFolder, RunInputs


@dataclass(frozen=True)
class Results:
    """A run that is ready to be registered.

    Attributes:
        config: The run's config.
        inputs: The folders it trained from.
        is_adapter: Whether the tuned model is an adapter, for use with its base model.
        base_loss: Held-out loss before training, in nats per supervised token.
        tuned_loss: The same after training.
        base_perplexity: `exp` of the base loss.
        tuned_perplexity: `exp` of the tuned loss.
        num_supervised: Held-out tokens that the losses are taken over.
        measured_at: When the tuned model was measured, in seconds since the epoch.
    """

    config: RunConfig
    inputs: RunInputs
    is_adapter: bool
    base_loss: float
    tuned_loss: float
    base_perplexity: float
    tuned_perplexity: float
    num_supervised: int
    measured_at: float

    @property
    def improvement(self) -> float:
        """By how much the held-out loss fell, in nats per supervised token."""
        return self.base_loss - self.tuned_loss


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
    base = _measurement(folder, "base")
    tuned = _measurement(folder, "tuned")
    return Results(
        config=folder.config(),
        inputs=inputs,
        is_adapter=is_adapter(folder.model),
        base_loss=_number(base["loss"]),
        tuned_loss=_number(tuned["loss"]),
        base_perplexity=_number(base["perplexity"]),
        tuned_perplexity=_number(tuned["perplexity"]),
        num_supervised=int(tuned["num_supervised"]),
        measured_at=evaluation_file(folder, "tuned").stat().st_mtime,
    )


def evaluation_file(folder: RunFolder, name: str) -> Path:
    """Where the evaluate step writes the measurement of `base` or `tuned`."""
    return folder.evaluation / f"{name}.json"


def _measurement(folder: RunFolder, name: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(evaluation_file(folder, name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"the evaluation of the {name} model is missing in the run '{folder.run}': run the evaluate step first"
        ) from None
    return content


def _number(value: float | None) -> float:
    # JSON has no NaN; some writers put null in its place.
    return float("nan") if value is None else float(value)
