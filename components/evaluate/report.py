"""The report for people: one HTML file that needs nothing beside it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from components.evaluate import formats
from components.evaluate.charts import Chart, loss_chart, memory_chart, split_chart, throughput_chart
from components.evaluate.results import ModelResult
from training.config import RunConfig
from training.history import History
from training.resolve import to_yaml

_UNCHANGED = 0.005
"""Difference of losses, in nats per token, below which perplexities are within half a percent."""


@dataclass(frozen=True)
class ReportData:
    """All that a report is made from; equal data make equal reports.

    Attributes:
        run: Name of the run.
        date: When the training ended, for people.
        config: The resolved configuration.
        base: What the base model achieved.
        tuned: What the tuned model achieved.
        history: The training.
        dataset: What the data set's manifest records.
        lineage: Where the result comes from, by label.
    """

    run: str
    date: str
    config: RunConfig
    base: ModelResult
    tuned: ModelResult
    history: History
    dataset: Mapping[str, Any]
    lineage: Mapping[str, str]


@dataclass(frozen=True)
class Verdict:
    """The outcome in words.

    Attributes:
        outcome: Its class.
        word: The outcome as one word with a sign, so that it does not rest on colour.
        sentence: What it means.
    """

    outcome: Literal["better", "worse", "unchanged"]
    word: str
    sentence: str


def render_report(data: ReportData) -> str:
    """Render the report as one HTML page without scripts or requests.

    Model output, data and names are untrusted: all of it is escaped.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        loss=formats.as_loss,
        perplexity=formats.as_perplexity,
        change=formats.as_change,
        count=formats.as_count,
        percent=formats.as_percent,
        duration=formats.as_duration,
        drawing=Markup,
    )
    return environment.get_template("report.html.j2").render(
        data=data,
        verdict=judge(data.base, data.tuned),
        before_after=_before_after(data.base, data.tuned),
        answers=list(zip(data.base.generations, data.tuned.generations, strict=True)),
        charts=_charts(data),
        split=split_chart(data.history) if data.history.split else None,
        speed=speed_facts(data.history),
        facts=dataset_facts(data.dataset),
        troubled=len(data.history.attempts) > 1 or any(a.incidents for a in data.history.attempts),
        config_yaml=to_yaml(data.config),
    )


def judge(base: ModelResult, tuned: ModelResult) -> Verdict:
    """Say in one sentence whether the tuned model predicts the held-out rows better."""
    tokens = f"{formats.as_count(tuned.num_supervised)} held-out tokens"
    before, after = formats.as_perplexity(base.perplexity), formats.as_perplexity(tuned.perplexity)
    difference = tuned.loss - base.loss
    if abs(difference) < _UNCHANGED:
        return Verdict(
            "unchanged",
            "= No change",
            f"On {tokens}, both perplexities are within half a percent of each other.",
        )
    # exp of the difference is the ratio of perplexities.
    if difference < 0:
        share = formats.as_percent(1 - math.exp(difference))
        return Verdict("better", "▼ Better", f"On {tokens}, perplexity fell from {before} to {after}, by {share}.")
    share = formats.as_percent(math.exp(min(difference, 700)) - 1)
    return Verdict(
        "worse",
        "▲ Worse",
        f"On {tokens}, perplexity rose from {before} to {after}, by {share}. The usual causes are too high a "
        "learning rate, and too many epochs on little data: then training loss ends far below held-out loss.",
    )


def dataset_facts(about: Mapping[str, Any]) -> dict[str, str]:
    """What a data set's manifest records, with labels and figures for people; unknown entries as they are."""
    # In pairs, which stand side by side where there is room.
    known = {
        "num_train_rows": "Rows to train on",
        "num_heldout_rows": "Rows held out",
        "num_train_samples": "Samples to train on",
        "num_heldout_samples": "Samples held out",
        "num_train_tokens": "Tokens to train on",
        "num_heldout_tokens": "Tokens held out",
        "num_train_supervised": "Supervised to train on",
        "num_heldout_supervised": "Supervised held out",
        "sequence_length": "Longest sample allowed",
        "fill": "Packed samples filled to",
        "num_train_documents": "Documents to train on",
        "num_truncated": "Rows cut at the end",
        "num_split": "Rows split",
        "num_unsupervised_dropped": "Pieces dropped, as unsupervised",
        "num_leaked_dropped": "Rows dropped, as held out too",
    }
    facts = {label: _as_fact(key, about[key]) for key, label in known.items() if about.get(key) is not None}
    for part in ("train", "heldout"):
        tokens, supervised = about.get(f"num_{part}_tokens"), about.get(f"num_{part}_supervised")
        if tokens and supervised is not None:
            facts[known[f"num_{part}_supervised"]] += f" ({formats.as_percent(supervised / tokens)})"
    # Source and revision are the lineage's.
    others = {key: value for key, value in about.items() if key not in {*known, "source", "revision"}}
    return facts | {
        key.replace("_", " ").capitalize(): _as_fact(key, value)
        for key, value in others.items()
        if value is not None
    }


def speed_facts(history: History) -> dict[str, str]:
    """How fast the training was and how well it used the devices, as far as that is known."""
    if not history.steps:
        return {}
    last = history.steps[-1]
    facts = {
        "Devices": (last.num_devices, formats.as_count),
        "Tokens per second and device": (history.tokens_per_s_per_device, formats.as_count),
        "Supervised tokens per second": (history.supervised_tokens_per_s, formats.as_count),
        "Computed positions filled": (history.fill, formats.as_percent),
        "Model TFLOP/s per device": (history.tflops_per_device, formats.as_tflops),
        "Published peak, TFLOP/s": (last.peak_tflops, formats.as_tflops),
        "Model FLOPs utilisation": (history.mfu, formats.as_percent),
    }
    return {label: as_text(value) for label, (value, as_text) in facts.items() if value is not None}


def _as_fact(key: str, value: Any) -> str:
    if key == "fill":
        return formats.as_percent(value)
    if key == "sequence_length":
        return f"{formats.as_count(value)} tokens"
    if isinstance(value, int) and not isinstance(value, bool):
        return formats.as_count(value)
    return str(value)


def _before_after(base: ModelResult, tuned: ModelResult) -> list[tuple[str, str, str, str]]:
    """Rows of the table: label, before, after, change."""
    probabilities = math.exp(-base.loss), math.exp(-tuned.loss)
    return [
        (
            "Loss, nats per token",
            formats.as_loss(base.loss),
            formats.as_loss(tuned.loss),
            formats.as_change(tuned.loss - base.loss),
        ),
        (
            "Perplexity",
            formats.as_perplexity(base.perplexity),
            formats.as_perplexity(tuned.perplexity),
            formats.as_change(tuned.perplexity - base.perplexity, digits=2 if tuned.perplexity < 10 else 1),
        ),
        (
            "Typical probability of the right token",
            formats.as_percent(probabilities[0]),
            formats.as_percent(probabilities[1]),
            f"× {probabilities[1] / probabilities[0]:,.2f}" if probabilities[0] else "",
        ),
    ]


def _charts(data: ReportData) -> list[Chart]:
    if not data.history.steps:
        return []
    return [
        loss_chart(data.history, data.base.loss, data.tuned.loss),
        throughput_chart(data.history),
        memory_chart(data.history),
    ]
