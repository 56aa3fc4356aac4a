"""Every rule of the gate, met and not met."""

import math
from dataclasses import replace

import pytest

from components.evaluate.champion import Opponent
from components.evaluate.decision import decide
from components.evaluate.gate import judge
from components.evaluate.intervals import Estimate
from tests.components.evaluate.results import compared, result
from training.config import GateConfig, RegistryConfig

HOLDER = "version 3, which holds the alias champion"


def verdict(tuned, base=2.5, champion=None, scores=None, base_scores=None, width=0.05, **rules):
    others = [result("base", base, scores=base_scores or {})]
    found = compared(
        *others,
        result("tuned", tuned, scores=scores or {}),
        None if champion is None else result("champion", champion, scores={}),
        width=width,
    )
    gate = GateConfig.model_validate(rules)
    return judge(gate, found["tuned"], found["base"], found.get("champion"), HOLDER)


@pytest.mark.parametrize(
    ("tuned", "least", "passed", "reason"),
    [
        (2.3, 0.0, True, "The held-out loss fell from 2.5 to 2.3, as the gate asks for."),
        (2.3, 0.1, True, "fell from 2.5 to 2.3, by more than the 0.1 that registry.gate.min_improvement asks for"),
        (2.4, 0.1, False, "fell from 2.5 to 2.4, but not by more than the 0.1"),
        (2.5, 0.0, False, "The held-out loss stayed at 2.5, where it must fall."),
        (2.6, 0.0, False, "The held-out loss rose from 2.5 to 2.6, where it must fall."),
        (math.nan, 0.0, False, "cannot be compared"),
    ],
)
def test_better_than_base(tuned, least, passed, reason):
    found = verdict(tuned, min_improvement=least)
    assert found.passed == passed
    assert reason in found.reasons[0]


@pytest.mark.parametrize(
    ("width", "least", "passed", "reason"),
    [
        (0.1, 0.0, True, "The improvement is 0.1 to 0.3 nats per token with 95 % confidence, all of it above 0."),
        (
            0.3,
            0.0,
            False,
            "The improvement is −0.1 to 0.5 nats per token with 95 % confidence, not all of it above",
        ),
        (0.1, 0.15, False, "not all of it above 0.15: it may be chance"),
    ],
)
def test_a_certain_improvement(width, least, passed, reason):
    found = verdict(2.3, width=width, significant=True, min_improvement=least)
    assert found.passed == passed and reason in found.reasons[1]


def test_a_single_document_is_never_certain():
    found = compared(result("base", 2.5), result("tuned", 2.0))
    alone = replace(found["tuned"], changes={"base": Estimate(-0.5, None, None, 1)})
    verdict = judge(GateConfig(significant=True), alone, found["base"], None)
    assert not verdict.passed and "no confidence interval: hold out more rows" in verdict.reasons[1]


@pytest.mark.parametrize(
    ("champion", "most", "passed", "reason"),
    [
        (2.4, 0.0, True, f"The held-out loss 2.3 is not higher than the 2.4 of {HOLDER}."),
        (2.3, 0.0, True, "is not higher"),
        (2.2, 0.0, False, f"The held-out loss 2.3 is higher than the 2.2 of {HOLDER}."),
        (2.2, 0.1, True, "is higher than the 2.2 of version 3, which holds the alias champion, as far as"),
        (2.1, 0.1, False, "but registry.gate.max_regression allows 0.1."),
        (math.nan, 0.0, False, "cannot be compared"),
    ],
)
def test_not_worse_than_the_champion(champion, most, passed, reason):
    found = verdict(2.3, champion=champion, max_regression=most)
    assert found.passed == passed and reason in found.reasons[1]


def test_without_a_champion_there_is_no_comparison():
    assert len(verdict(2.3).checks) == 1


@pytest.mark.parametrize(
    ("value", "passed", "reason"),
    [
        (0.4, True, "arc_easy/acc is 0.4, at least the 0.4 that registry.gate.floors asks for."),
        (0.39, False, "arc_easy/acc is 0.39, below the 0.4"),
        (math.nan, False, "names arc_easy/acc, which is nan for the tuned model and cannot be compared."),
        (None, False, "names arc_easy/acc, which was not measured: measured were rougeL."),
    ],
)
def test_floors(value, passed, reason):
    scores = {"rougeL": (0.3, 9)} | ({} if value is None else {"arc_easy/acc": (value, 100)})
    found = verdict(2.3, scores=scores, floors={"arc_easy/acc": 0.4})
    assert found.passed == passed and reason in found.reasons[1]


@pytest.mark.parametrize(
    ("after", "passed", "reason"),
    [
        (0.5, True, "arc_easy/acc went from 0.5 to 0.5, a drop of no more than the 0.02"),
        (0.48, True, "no more than the 0.02 that registry.gate.max_drops allows"),
        (0.47, False, "arc_easy/acc went from 0.5 to 0.47, a drop of more than the 0.02"),
        (None, False, "was not measured: no scores were measured"),
    ],
)
def test_what_must_not_be_forgotten(after, passed, reason):
    scores = {} if after is None else {"arc_easy/acc": (after, 100)}
    found = verdict(2.3, scores=scores, base_scores={"arc_easy/acc": (0.5, 100)}, max_drops={"arc_easy/acc": 0.02})
    assert found.passed == passed and reason in found.reasons[1]


def test_a_drop_from_what_the_base_model_could_not_do_is_no_figure():
    base_scores = {"arc_easy/acc": (math.nan, 9)}
    found = verdict(
        2.3, scores={"arc_easy/acc": (0.5, 9)}, base_scores=base_scores, max_drops={"arc_easy/acc": 0.1}
    )
    assert not found.passed and "which is nan for the base model and cannot be compared." in found.reasons[1]


@pytest.mark.parametrize(
    ("after", "passed", "reason"),
    [
        (18.0, True, "wiki/perplexity went from 20 to 18, a rise of no more than the 0.5"),
        (20.5, True, "a rise of no more than the 0.5 that registry.gate.max_drops allows."),
        (20.6, False, "wiki/perplexity went from 20 to 20.6, a rise of more than the 0.5"),
    ],
)
def test_of_what_lower_is_better_a_rise_is_the_drop_and_there_is_no_floor(after, passed, reason):
    found = compared(
        result("base", 2.5, scores={"wiki/perplexity": (20.0, 9)}),
        replace(
            result("tuned", 2.3, scores={"wiki/perplexity": (after, 9)}), lower_is_better=("wiki/perplexity",)
        ),
    )
    gate = GateConfig(max_drops={"wiki/perplexity": 0.5})
    judged = judge(gate, found["tuned"], found["base"], None)
    assert judged.passed == passed and reason in judged.reasons[1]
    judged = judge(GateConfig(floors={"wiki/perplexity": 1.0}), found["tuned"], found["base"], None)
    assert not judged.passed and "of which lower is better, so it has no floor" in judged.reasons[1]


def test_all_rules_are_told_and_one_is_enough_to_fail():
    scores = {"exact_match": (0.1, 9)}
    found = verdict(2.3, champion=2.2, scores=scores, floors={"exact_match": 0.05}, significant=True)
    assert [passed for passed, _ in found.checks] == [True, True, False, True] and not found.passed


def test_a_decision_tells_first_what_is_not_met_and_last_what_was_not_compared():
    found = compared(result("base", 2.5), result("tuned", 2.3))
    registry = RegistryConfig(gate={"floors": {"rougeL": 0.9}})
    decision = decide(registry, found["tuned"], found["base"], None, Opponent(reason="There is no MLflow."))
    assert [passed for passed, _ in decision.checks] == [False, True, None]
    assert decision.reasons[0].startswith("rougeL is 0.4, below")
