"""Tables of a report: models side by side, each figure with its 95 % confidence interval."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from components.evaluate import formats
from components.evaluate.intervals import Estimate
from components.evaluate.results import ModelResult, perplexity
from training.config import ANSWER_MEASURES
from training.measure.request import ModelName

_LABELS = {"exact_match": "Exact match of answers", "rougeL": "ROUGE-L of answers"}


@dataclass(frozen=True)
class Cell:
    """A figure, and its interval or what else is said below it."""

    text: str
    below: str = ""


@dataclass(frozen=True)
class Row:
    """A row: a label, with a note below it, and a cell for each column."""

    label: str
    below: str
    cells: tuple[Cell, ...]


_EMPTY = Cell("–")


def loss_rows(models: Sequence[ModelResult], tuned: ModelResult) -> list[Row]:
    """Loss, perplexity and probability of all models, then the tuned model's changes.

    Args:
        models: In the order of the columns.
        tuned: The one whose changes follow, against each of the others in their order.
    """
    changes = [tuned.changes[other.name] for other in models if other is not tuned]
    return [
        Row(
            "Loss, nats per token",
            "",
            (
                *(_cell(model.estimate, formats.as_loss) for model in models),
                *(_cell(change, formats.as_change) for change in changes),
            ),
        ),
        Row(
            "Perplexity",
            "",
            (
                *(_cell(_mapped(model.estimate, perplexity), formats.as_perplexity) for model in models),
                *(_cell(_mapped(change, _ratio), _as_factor) for change in changes),
            ),
        ),
        Row(
            "Typical probability of the right token",
            "",
            (
                *(Cell(formats.as_percent(math.exp(-model.loss))) for model in models),
                *(Cell(_as_factor(_ratio(-change.value))) for change in changes),
            ),
        ),
    ]


def source_rows(models: Sequence[ModelResult], tuned: ModelResult) -> list[Row]:
    """The loss on each data source; empty where there is only one."""
    if len(tuned.sources) < 2:
        return []
    rows = []
    for number, source in enumerate(tuned.sources):
        documents = f"{formats.as_count(source.loss.count)} document{'' if source.loss.count == 1 else 's'}"
        rows.append(
            Row(
                source.name,
                f"{formats.as_count(source.num_supervised)} tokens in {documents}",
                (
                    *(_cell(model.sources[number].loss, formats.as_loss) for model in models),
                    *(
                        _cell(source.changes[other.name], formats.as_change)
                        for other in models
                        if other is not tuned
                    ),
                ),
            )
        )
    return rows


def score_rows(models: Sequence[ModelResult], tuned: ModelResult) -> list[Row]:
    """Scores of answers and tasks; empty where none were measured."""
    rows = []
    for name, score in tuned.scores.items():
        kind = "answers" if name in ANSWER_MEASURES else "examples"
        notes = [f"{formats.as_count(score.count)} {kind}"] if score.count else []
        notes += ["lower is better"] if name in tuned.lower_is_better else []
        rows.append(
            Row(
                _LABELS.get(name, name),
                ", ".join(notes),
                (
                    *(_score(model.scores, name, formats.as_score) for model in models),
                    *(
                        _score(_changes(tuned, other.name), name, formats.as_change)
                        for other in models
                        if other is not tuned
                    ),
                ),
            )
        )
    return rows


def _changes(tuned: ModelResult, other: ModelName) -> Mapping[str, Estimate]:
    return tuned.score_changes.get(other, {})


def _score(scores: Mapping[str, Estimate], name: str, as_text: Callable[[float], str]) -> Cell:
    return _cell(scores[name], as_text) if name in scores else _EMPTY


def _cell(estimate: Estimate, as_text: Callable[[float], str]) -> Cell:
    return Cell(as_text(estimate.value), formats.as_interval(estimate, as_text))


def _mapped(estimate: Estimate, function: Callable[[float], float]) -> Estimate:
    """The estimate of a rising function of a figure."""
    low, high = (None if end is None else function(end) for end in (estimate.low, estimate.high))
    return Estimate(function(estimate.value), low, high, estimate.count)


def _ratio(change: float) -> float:
    """Of perplexities, from a difference of losses."""
    return perplexity(change)


def _as_factor(ratio: float) -> str:
    return f"× {ratio:,.2f}" if ratio >= 0.005 else f"× {ratio:.1e}"
