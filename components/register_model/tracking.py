"""The MLflow run that mirrors a run: its configuration, curves, measurements and files."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from components.register_model.connection import Connection
from components.register_model.results import Results, evaluation_file
from training.errors import UserError
from training.events import read_events
from training.history import History, read_history
from training.resolve import to_yaml
from training.run_folder import RunFolder

MODEL_PATH = "model"
"""Where the model lies among the run's artifacts, when it has to be uploaded."""

_METRICS_PER_BATCH = 1000
_PARAMS_AND_TAGS_PER_BATCH = 100
_PARAM_LENGTH = 500
"""The first two are MLflow's limits. The third was the limit of older servers, and is ample for a setting; the
artifact config.yaml has every value whole."""


def find_or_create_run(
    connection: Connection, folder: RunFolder, results: Results, config_fingerprint: str
) -> Any:
    """The MLflow run of a run, found by its tags or made.

    The name alone is not enough on a server that several stores share.

    Returns:
        The `mlflow.entities.Run`.
    """
    experiment = _experiment(connection, results.config.registry.experiment)
    tags = {"shardline.run": folder.run, "shardline.config_fingerprint": config_fingerprint}
    query = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
    found = connection.client.search_runs([experiment], filter_string=query, max_results=1)
    if found:
        return found[0]
    events = read_events(folder.events)
    return connection.client.create_run(
        experiment,
        run_name=folder.run,
        tags=tags,
        start_time=_milliseconds(events[0].time) if events else None,
    )


def log_run(client: Any, run_id: str, folder: RunFolder, results: Results, tags: Mapping[str, str]) -> None:
    """Log all that is known of a run; what an earlier try logged stays as it is.

    Args:
        client: The `MlflowClient`.
        run_id: The MLflow run.
        folder: The run's folder.
        results: The run's config and measurements.
        tags: Tags to set.
    """
    from mlflow.entities import Metric, Param, RunTag

    config = results.config
    params = [Param(key, _cut(value)) for key, value in flatten(config.model_dump(mode="json"))]
    for batch in _batches(params, _PARAMS_AND_TAGS_PER_BATCH):
        client.log_batch(run_id, params=batch)
    for batch in _batches([RunTag(*tag) for tag in tags.items()], _PARAMS_AND_TAGS_PER_BATCH):
        client.log_batch(run_id, tags=batch)

    points = [*_curves(read_history(folder.events)), *_measurements(results)]
    for batch in _batches([Metric(*point) for point in points], _METRICS_PER_BATCH):
        client.log_batch(run_id, metrics=batch)

    client.log_text(run_id, to_yaml(config), "config.yaml")
    for name in ("base", "tuned"):
        client.log_artifact(run_id, str(evaluation_file(folder, name)), "evaluation")
    report = folder.evaluation / "report.html"
    if report.is_file():
        client.log_text(run_id, report.read_text(encoding="utf-8"), "report.html")


def upload_model(connection: Connection, run: Any, folder: RunFolder) -> str:
    """Copy the tuned model to the run's artifacts.

    Returns:
        Its address, as the source of a model version.
    """
    connection.client.log_artifacts(run.info.run_id, str(folder.model), MODEL_PATH)
    return f"runs:/{run.info.run_id}/{MODEL_PATH}"


def flatten(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted key and text of every leaf: text as it is, the rest as JSON."""
    for key, value in fields.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)


def _experiment(connection: Connection, name: str) -> str:
    from mlflow.exceptions import MlflowException

    experiment = connection.client.get_experiment_by_name(name)
    if experiment is None:
        try:
            created: str = connection.client.create_experiment(name, artifact_location=connection.artifacts)
            return created
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        # Another run of the study was first.
        experiment = connection.client.get_experiment_by_name(name)
    if experiment.lifecycle_stage != "active":
        raise UserError(
            f"the MLflow experiment '{name}' is deleted: restore it, or choose another in registry.experiment"
        )
    found: str = experiment.experiment_id
    return found


def _curves(history: History) -> Iterator[tuple[str, float, int, int]]:
    for event in history.steps:
        values = {
            "loss": event.loss,
            "worst_rank_loss": event.worst_rank_loss,
            "grad_norm": event.grad_norm,
            "learning_rate": event.learning_rate,
            "tokens_per_s": event.tokens_per_s,
            "tokens_per_s_per_device": event.tokens_per_s_per_device,
            "supervised_tokens_per_s": event.supervised_tokens_per_s,
            "fill": event.fill,
            "tflops_per_device": event.tflops_per_device,
            "mfu": event.mfu,
            "memory_gib": event.memory_gib,
            "seconds": event.seconds,
            **{f"seconds_{phase}": seconds for phase, seconds in event.split.items()},
        }
        for name, value in values.items():
            if value is not None:
                yield f"train/{name}", value, _milliseconds(event.time), event.step
    for step, evaluation in history.heldout.items():
        yield "heldout/loss", evaluation.loss, _milliseconds(evaluation.time), step


def _measurements(results: Results) -> Iterator[tuple[str, float, int, int]]:
    values = {
        "base_loss": results.base_loss,
        "tuned_loss": results.tuned_loss,
        "base_perplexity": results.base_perplexity,
        "tuned_perplexity": results.tuned_perplexity,
        "improvement": results.improvement,
    }
    for name, value in values.items():
        # The time of the measurement and not of now, so that a re-run logs the very same point.
        yield name, value, _milliseconds(results.measured_at), 0


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _cut(text: str) -> str:
    return text if len(text) <= _PARAM_LENGTH else f"{text[: _PARAM_LENGTH - 1]}…"


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
