"""The section `registry`."""

import re
from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from training.config.evaluation import ANSWER_MEASURES, EvaluationConfig
from training.config.section import Section
from training.credentials import has_login
from training.kubernetes_rules import RULE


class GateConfig(Section):
    """What a version must achieve for the alias to move to it."""

    min_improvement: float = Field(default=0.0, ge=0)
    """Held-out loss must be lower than the base model's by more than this, in nats per token."""

    max_regression: float = Field(default=0.0, ge=0)
    """Held-out loss may be higher than the champion's by at most this, in nats per token, both measured on this
    run's held-out rows."""

    significant: bool = False
    """The improvement over the base model must be certain: the whole of its 95 % confidence interval must lie
    above `min_improvement`."""

    floors: dict[str, float] = {}
    """Least values of measures, such as {arc_easy/acc: 0.4, rougeL: 0.3, exact_match: 0.1}. A measure of which
    lower is better, as a perplexity, has none and fails the gate."""

    max_drops: dict[str, float] = {}
    """By how much measures may be worse than the base model's, such as {arc_easy/acc: 0.02}: what must not be
    forgotten. Worse is lower, and higher where lm-eval says that lower is better."""


class RegistryConfig(Section):
    """Where the result is registered in MLflow."""

    tracking_uri: str | None = None
    """MLflow tracking server, or a database such as `sqlite:////path/mlflow.db`. Unset: SQLite inside the
    store. Credentials never stand here: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or
    MLFLOW_TRACKING_TOKEN) in the steps' environment, from a secret."""

    experiment: str = Field(default="shardline", min_length=1, max_length=256)
    """MLflow experiment of the run."""

    model_name: str = Field(default="shardline-model", max_length=256)
    """Name of the registered model."""

    alias: str = Field(default="champion", max_length=100)
    """Alias that moves to the new version when the gate passes. `candidate` always marks the newest version, and
    MLflow keeps `latest` and `v1`, `v2`, … for itself."""

    artifact: Literal["auto", "reference", "copy"] = "auto"
    """`copy` uploads the tuned model to MLflow's artifact store; `reference` registers its place in the store,
    which has to outlive the version and be mounted where the model is loaded. `auto`: `reference` with a database,
    `copy` with a server."""

    gate: GateConfig = GateConfig()
    """What a version must achieve for the alias to move to it."""

    # Before the type is checked, whose error would show what was given.
    @field_validator("tracking_uri", mode="before")
    @classmethod
    def _refuse_credentials(cls, uri: Any) -> Any:
        # The config is saved, shown and logged in many places; what is not in it cannot leak from it.
        if has_login(str(uri)):
            raise ValueError(
                "registry.tracking_uri holds a user or password: leave them out of it, and set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment, from a secret"
            )
        return uri

    @field_validator("model_name")
    @classmethod
    def _check_model_name(cls, name: str) -> str:
        if not re.fullmatch(r"[^/:.\s]([^/:]*[^/:\s])?", name):
            raise PydanticCustomError(
                RULE, "a name has no '/' and no ':', no blank at its ends and no '.' at its beginning"
            )
        return name

    @field_validator("alias")
    @classmethod
    def _refuse_reserved(cls, alias: str) -> str:
        if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_-]*", alias):
            raise PydanticCustomError(RULE, "an alias has letters, digits, '_' and '-', and begins with a letter")
        if re.fullmatch(r"candidate|latest|v\d+", alias, re.IGNORECASE):
            raise ValueError(f"registry.alias is '{alias}', which has a meaning of its own: choose another name")
        return alias


def gate_problems(gate: GateConfig, evaluation: EvaluationConfig) -> list[str]:
    """Rules about what is not measured could only fail at the end of the run."""
    problems = []
    for rule, measures in (("floors", gate.floors), ("max_drops", gate.max_drops)):
        for measure in measures:
            is_answer = measure in ANSWER_MEASURES
            if is_answer and not evaluation.num_scored:
                problems.append(
                    f"registry.gate.{rule} names {measure}, but evaluation.num_scored is 0: raise it, or remove "
                    "the rule"
                )
            if not is_answer and not evaluation.tasks:
                problems.append(
                    f"registry.gate.{rule} names {measure}, but evaluation.tasks is empty: add the task, or name "
                    f"one of {', '.join(ANSWER_MEASURES)}"
                )
    return problems
