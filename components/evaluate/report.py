"""The report for people: one HTML file that needs nothing beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from components.evaluate import formats
from components.evaluate.charts import Chart, loss_chart, memory_chart, split_chart, throughput_chart
from components.evaluate.decision import MARKS, Decision
from components.evaluate.facts import dataset_facts, speed_facts
from components.evaluate.intervals import NUM_RESAMPLES
from components.evaluate.results import Generation, ModelResult
from components.evaluate.tables import loss_rows, score_rows, source_rows
from components.evaluate.verdict import verdict_on
from components.pages import page_environment
from training.config import RunConfig
from training.history import History
from training.measure.request import ModelName
from training.resolve import to_yaml

_ORDER: tuple[ModelName, ...] = ("base", "champion", "tuned")
"""From left to right."""

_NAMES = {"base": "Base model", "champion": "Champion", "tuned": "Tuned model"}


@dataclass(frozen=True)
class ReportData:
    """All that a report is made from; equal data make equal reports.

    Attributes:
        run: Name of the run.
        date: When the training ended, for people.
        config: The resolved configuration.
        results: What base model, tuned model and, if it was measured, champion achieved.
        decision: The gate's.
        history: The training.
        dataset: What the data set's manifest records.
        lineage: Where the result comes from, by label.
        goodput: What the training's time went into, in one line; empty where that is not known.
    """

    run: str
    date: str
    config: RunConfig
    results: Mapping[ModelName, ModelResult]
    decision: Decision
    history: History
    dataset: Mapping[str, Any]
    lineage: Mapping[str, str]
    goodput: str = ""


def render_report(data: ReportData) -> str:
    """Render the report as one HTML page without scripts or requests.

    Model output, data and names are untrusted: all of it is escaped.
    """
    environment = page_environment(Path(__file__).parent)
    environment.filters.update(
        loss=formats.as_loss,
        perplexity=formats.as_perplexity,
        change=formats.as_change,
        count=formats.as_count,
        percent=formats.as_percent,
        duration=formats.as_duration,
        drawing=Markup,
    )
    models = [data.results[name] for name in _ORDER if name in data.results]
    base, tuned = data.results["base"], data.results["tuned"]
    change = tuned.changes["base"]
    return environment.get_template("report.html.j2").render(
        data=data,
        base=base,
        tuned=tuned,
        names=_NAMES,
        columns=[model.name for model in models],
        verdict=verdict_on(base, tuned),
        change=change,
        change_interval=formats.as_interval(change, formats.as_change),
        marks=MARKS,
        losses=loss_rows(models, tuned),
        sources=source_rows(models, tuned),
        scores=score_rows(models, tuned),
        num_resamples=NUM_RESAMPLES,
        questions=_questions(models),
        charts=_charts(data),
        split=split_chart(data.history) if data.history.split else None,
        speed=speed_facts(data.history),
        facts=dataset_facts(data.dataset),
        troubled=len(data.history.attempts) > 1 or any(a.incidents for a in data.history.attempts),
        config_yaml=to_yaml(data.config),
    )


def _questions(models: list[ModelResult]) -> list[tuple[Generation, list[tuple[ModelName, str]]]]:
    """Each held-out question, with every model's answer in the order of the columns."""
    return [
        (asked[0], [(model.name, one.answer) for model, one in zip(models, asked, strict=True)])
        for asked in zip(*(model.generations for model in models), strict=True)
    ]


def _charts(data: ReportData) -> list[Chart]:
    if not data.history.steps:
        return []
    return [
        loss_chart(data.history, data.results["base"].loss, data.results["tuned"].loss),
        throughput_chart(data.history),
        memory_chart(data.history),
    ]
