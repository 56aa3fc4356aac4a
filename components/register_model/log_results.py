"""What the evaluation found, in the MLflow run: metrics, tags and the pages for people."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from components.register_model.results import Measure, Results, evaluation_file
from components.tracking.curves import Point, milliseconds
from components.tracking.run_log import RunLog
from components.tracking.texts import safe_name
from training.resolve import to_yaml
from training.run_folder import RunFolder


def log_results(log: RunLog, folder: RunFolder, results: Results) -> None:
    """Log measurements and files; what an earlier try logged stays as it is.

    Args:
        log: Of the MLflow run.
        folder: The run's folder.
        results: The run's config and measurements.
    """
    log.values(_points(results))
    compared = results.decision.champion_version
    log.tags(
        {
            "shardline.gate_reasons": "\n".join(results.decision.reasons),
            **({"shardline.compared_with_version": compared} if compared is not None else {}),
        }
    )
    client, run_id = log.client, log.run_id
    client.log_text(run_id, to_yaml(results.config), "config.yaml")
    for name in results.by_model:
        client.log_artifact(run_id, str(evaluation_file(folder, name)), "evaluation")
    for page in _pages(folder, results):
        client.log_artifact(run_id, str(page))


def _pages(folder: RunFolder, results: Results) -> list[Path]:
    pages = (folder.evaluation / "report.html", results.inputs.dataset / "statistics.html")
    return [page for page in pages if page.is_file()]


def _points(results: Results) -> Iterator[Point]:
    for name, model in results.by_model.items():
        measures = {
            f"{name}_loss": model.loss,
            f"{name}_perplexity": Measure(model.perplexity),
            **{f"source/{safe_name(source)}/{name}_loss": loss for source, loss in model.sources.items()},
            **{f"score/{safe_name(score)}/{name}": value for score, value in model.scores.items()},
        }
        yield from _with_intervals(measures, model.measured_at)
    yield from _with_intervals({"improvement": results.improvement}, results.tuned.measured_at)


def _with_intervals(measures: Mapping[str, Measure], measured_at: float) -> Iterator[Point]:
    # The time of the measurement and not of now, so that a re-run logs the very same point.
    time = milliseconds(measured_at)
    for key, measure in measures.items():
        # Apart, or they would fill the page of charts.
        ends = {
            key: measure.value,
            f"interval/{key}_low": measure.low,
            f"interval/{key}_high": measure.high,
        }
        yield from (Point(name, value, time, 0) for name, value in ends.items() if value is not None)
