"""What the evaluation found, in the MLflow run: metrics, tags and the pages for people."""

import math
from collections.abc import Iterator
from pathlib import Path

from components.register_model.results import Measure, Results, evaluation_file
from components.tracking.curves import Point, milliseconds
from components.tracking.run_log import RunLog
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
        # The time of the measurement and not of now, so that a re-run logs the very same point.
        time = milliseconds(model.measured_at)
        measures = {
            f"{name}_loss": model.loss,
            f"{name}_perplexity": Measure(model.perplexity),
            **{f"heldout/{_safe(source)}/{name}_loss": loss for source, loss in model.sources.items()},
            **{f"score/{_safe(score)}/{name}": value for score, value in model.scores.items()},
        }
        for key, measure in measures.items():
            yield Point(key, measure.value, time, 0)
            if measure.low is not None and measure.high is not None:
                yield Point(f"{key}_low", measure.low, time, 0)
                yield Point(f"{key}_high", measure.high, time, 0)
    if math.isfinite(results.improvement):
        yield Point("improvement", results.improvement, milliseconds(results.tuned.measured_at), 0)


def _safe(name: str) -> str:
    """A name with the characters that MLflow allows in that of a metric."""
    kept = "".join(letter if letter.isalnum() or letter in "_-. /" else "_" for letter in name)
    return kept.strip("/").replace("//", "/") or "_"
