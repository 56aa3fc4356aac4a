"""Results of models that nobody measured."""

from dataclasses import replace

from components.evaluate.intervals import Estimate
from components.evaluate.results import Generation, ModelResult, SourceResult


def result(name, loss, answer="an answer", scores=None):
    """A model's, with intervals of 0.1 to either side."""
    generations = (Generation("a question", "a reference", answer), Generation("another", "reference", ""))
    given = {"rougeL": (0.4, 40), "arc_easy/acc": (0.5, 100)} if scores is None else scores
    return ModelResult(
        name=name,
        loss=loss,
        loss_low=loss - 0.1,
        loss_high=loss + 0.1,
        num_supervised=3456,
        num_documents=40,
        changes={},
        sources=(),
        scores={score: around(*what) for score, what in given.items()},
        lower_is_better=(),
        score_changes={},
        generations=generations,
        seconds=1.5,
        measured_in="float32 on 1 rank (cpu)",
        made_from="f00d",
    )


def around(value, count=40, width=0.1):
    """An estimate."""
    return Estimate(value, value - width, value + width, count)


def compared(base, tuned, champion=None, *, width=0.05, sources=()):
    """By name, with the tuned model's changes from the others."""
    others = [one for one in (base, champion) if one is not None]

    def on_source(one, name, changes):
        return SourceResult(name, around(one.loss, 20), one.num_supervised // 2, changes)

    changes = {other.name: around(tuned.loss - other.loss, width=width) for other in others}
    scores = {
        other.name: {
            name: around(score.value - other.scores[name].value, score.count)
            for name, score in tuned.scores.items()
            if name in other.scores
        }
        for other in others
    }
    found = {one.name: replace(one, sources=tuple(on_source(one, name, {}) for name in sources)) for one in others}
    found["tuned"] = replace(
        tuned,
        changes=changes,
        score_changes=scores,
        sources=tuple(on_source(tuned, name, changes) for name in sources),
    )
    return found
