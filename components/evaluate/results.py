"""What one model achieved on the held-out rows, and the file that keeps it for the steps after."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from components.evaluate.answers import answer_scores
from components.evaluate.intervals import Estimate, loss_change, loss_estimate, mean_estimate
from training.measure.measured import Documents, Measured
from training.measure.request import ModelName
from training.store import write_atomically

_Z = 1.96
"""Standard errors from a mean to the end of its 95 % interval."""


@dataclass(frozen=True)
class Generation:
    """A held-out question with its reference and one model's answer."""

    question: str
    reference: str
    answer: str


@dataclass(frozen=True)
class SourceResult:
    """The held-out loss on one data source.

    Attributes:
        name: Of the source.
        loss: Nats per supervised token.
        num_supervised: Tokens that it is taken over.
        changes: See `ModelResult`.
    """

    name: str
    loss: Estimate
    num_supervised: int
    changes: dict[ModelName, Estimate]


@dataclass(frozen=True)
class ModelResult:
    """What one model achieved on the held-out rows.

    Attributes:
        name: Which model.
        loss: Cross-entropy in nats per supervised token.
        loss_low: Lower end of its 95 % interval; None where there is none, as of a single document.
        loss_high: Upper end.
        num_supervised: Tokens that the loss is taken over.
        num_documents: Documents that they stand in.
        changes: Of the tuned model: by how much its loss is higher than another's, by the other's name.
        sources: The same for each data source.
        scores: Of answers, by the names of `ANSWER_MEASURES`, and of tasks, by `task/measure`.
        lower_is_better: Names of the scores of which lower is better.
        score_changes: Of the tuned model: by how much a score is higher than another's, by the other's name.
        generations: Answers for the report.
        seconds: How long the measurement took, loading included.
        measured_in: Precision, device and number of ranks, for people.
        made_from: Fingerprint of all that the result depends on: model, data set, settings.
    """

    name: ModelName
    loss: float
    loss_low: float | None
    loss_high: float | None
    num_supervised: int
    num_documents: int
    changes: dict[ModelName, Estimate]
    sources: tuple[SourceResult, ...]
    scores: dict[str, Estimate]
    lower_is_better: tuple[str, ...]
    score_changes: dict[ModelName, dict[str, Estimate]]
    generations: tuple[Generation, ...]
    seconds: float
    measured_in: str
    made_from: str

    @property
    def perplexity(self) -> float:
        """exp(loss): among how many equally likely tokens the model, on average, still has to choose."""
        return perplexity(self.loss)

    @property
    def estimate(self) -> Estimate:
        """The loss with its interval."""
        return Estimate(self.loss, self.loss_low, self.loss_high, self.num_documents)


def perplexity(loss: float) -> float:
    """exp(loss), held below the largest double so that it stays a number that JSON can carry."""
    return math.exp(min(loss, 700.0))


def result_of(measured: Measured, others: tuple[Measured, ...] = ()) -> ModelResult:
    """Figures of a measured model.

    Args:
        measured: The model.
        others: Models that it is compared with, measured on the same documents and prompts.
    """
    documents = measured.documents
    loss = loss_estimate(documents.nats, documents.num_supervised)
    answers = answer_scores(measured.answers)
    tasks = {
        name: Estimate(score.value, *_around(score.value, score.stderr), score.count)
        for name, score in measured.tasks.items()
    }
    return ModelResult(
        name=measured.name,
        loss=loss.value,
        loss_low=loss.low,
        loss_high=loss.high,
        num_supervised=measured.num_supervised,
        num_documents=len(documents.nats),
        changes={other.name: _change(documents, other.documents) for other in others},
        sources=_sources(measured, others),
        scores={name: mean_estimate(values) for name, values in answers.items()} | tasks,
        lower_is_better=tuple(name for name, score in measured.tasks.items() if score.lower_is_better),
        score_changes={other.name: _score_changes(measured, other, answers) for other in others},
        generations=tuple(
            Generation(answer.question, answer.reference, answer.answer)
            for answer in measured.answers
            if answer.is_shown
        ),
        seconds=measured.seconds,
        measured_in=_measured_in(measured),
        made_from=measured.key,
    )


def save_result(result: ModelResult, file: Path) -> None:
    """Write a result as JSON, unless it is there: a file's time tells when its content was measured."""
    content = {**asdict(result), "perplexity": result.perplexity}
    text = json.dumps(content, indent=1, ensure_ascii=False)
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        write_atomically(file, text)


def load_result(file: Path) -> ModelResult:
    """Read a result that `save_result` wrote, as in a notebook."""
    content = json.loads(file.read_text(encoding="utf-8"))
    del content["perplexity"]
    return ModelResult(
        **content
        | {
            "changes": _estimates(content["changes"]),
            "sources": tuple(
                SourceResult(
                    **source | {"loss": Estimate(**source["loss"]), "changes": _estimates(source["changes"])}
                )
                for source in content["sources"]
            ),
            "scores": _estimates(content["scores"]),
            "lower_is_better": tuple(content["lower_is_better"]),
            "score_changes": {name: _estimates(changes) for name, changes in content["score_changes"].items()},
            "generations": tuple(Generation(**generation) for generation in content["generations"]),
        }
    )


def _estimates(content: dict[Any, dict[str, Any]]) -> dict[Any, Estimate]:
    return {name: Estimate(**estimate) for name, estimate in content.items()}


def _change(documents: Documents, other: Documents) -> Estimate:
    return loss_change(documents.nats, other.nats, documents.num_supervised)


def _sources(measured: Measured, others: tuple[Measured, ...]) -> tuple[SourceResult, ...]:
    results = []
    for number, name in enumerate(measured.sources):
        own = _of_source(measured.documents, number)
        if len(own.nats):
            results.append(
                SourceResult(
                    name=name,
                    loss=loss_estimate(own.nats, own.num_supervised),
                    num_supervised=int(own.num_supervised.sum()),
                    changes={other.name: _change(own, _of_source(other.documents, number)) for other in others},
                )
            )
    return tuple(results)


def _of_source(documents: Documents, number: int) -> Documents:
    mine = documents.source == number
    return Documents(documents.nats[mine], documents.num_supervised[mine], documents.source[mine])


def _score_changes(measured: Measured, other: Measured, answers: dict[str, np.ndarray]) -> dict[str, Estimate]:
    before = answer_scores(other.answers)
    changes = {name: mean_estimate(values - before[name]) for name, values in answers.items() if name in before}
    for name, score in measured.tasks.items():
        if (theirs := other.tasks.get(name)) is not None:
            # lm-eval keeps no examples apart: as if the two were drawn independently, which is too wide.
            error = None
            if score.stderr is not None and theirs.stderr is not None:
                error = math.hypot(score.stderr, theirs.stderr)
            change = score.value - theirs.value
            changes[name] = Estimate(change, *_around(change, error), score.count)
    return changes


def _around(value: float, stderr: float | None) -> tuple[float | None, float | None]:
    if stderr is None or not math.isfinite(stderr):
        return None, None
    return value - _Z * stderr, value + _Z * stderr


def _measured_in(measured: Measured) -> str:
    ranks = f"{measured.num_ranks} rank{'' if measured.num_ranks == 1 else 's'}"
    how = ", sharded" if measured.sharding == "full" else ""
    return f"{measured.precision} on {ranks} ({measured.device}{how})"
