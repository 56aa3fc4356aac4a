"""The gate's decision on a run: reached here, told in the report, and carried out by register_model."""

import json
from dataclasses import dataclass
from typing import Any

from components.evaluate.champion import Opponent
from components.evaluate.gate import judge
from components.evaluate.results import ModelResult
from training.config import RegistryConfig
from training.run_folder import RunFolder
from training.store import write_atomically


@dataclass(frozen=True)
class Decision:
    """What the gate decided.

    Attributes:
        passed: Whether the alias may move to the tuned model.
        alias: The alias.
        checks: One for each rule: whether it is met (None: not compared), and why.
        champion_version: The version that the tuned model was held against; None: none holds the alias, or it
            could not be found.
        trouble: What a person should know of the comparison; empty if nothing.
    """

    passed: bool
    alias: str
    checks: tuple[tuple[bool | None, str], ...]
    champion_version: str | None
    trouble: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences."""
        return tuple(reason for _, reason in self.checks)

    @property
    def headline(self) -> str:
        """The decision in one sentence."""
        outcome = "may move" if self.passed else "does not move"
        return f"The alias {self.alias} {outcome} to this model."


def decide(
    registry: RegistryConfig,
    tuned: ModelResult,
    base: ModelResult,
    champion: ModelResult | None,
    opponent: Opponent,
) -> Decision:
    """Hold the tuned model against the rules of the configuration.

    Args:
        registry: The run's section.
        tuned: The model to judge.
        base: The model before training.
        champion: The champion's result, if it was measured.
        opponent: What is known of it.
    """
    who = f"version {opponent.version}, which holds the alias {registry.alias}"
    verdict = judge(registry.gate, tuned, base, champion, who)
    # What is not met comes first, as that is what people look for.
    checks: list[tuple[bool | None, str]] = sorted(verdict.checks, key=lambda check: bool(check[0]))
    if champion is None and opponent.reason:
        checks.append((None, opponent.reason))
    return Decision(
        verdict.passed,
        registry.alias,
        tuple(checks),
        opponent.version,
        opponent.reason if opponent.is_trouble else "",
    )


def save_decision(folder: RunFolder, decision: Decision, measured_at: float) -> None:
    """Write `<run>/evaluation/gate.json`, which register_model reads."""
    content: dict[str, Any] = {
        "passed": decision.passed,
        "reasons": list(decision.reasons),
        "alias": decision.alias,
        "champion_version": decision.champion_version,
        "measured_at": measured_at,
    }
    write_atomically(folder.evaluation / "gate.json", json.dumps(content, indent=1, ensure_ascii=False))


MARKS = {True: "✓", False: "✗", None: "–"}
"""Of a rule that is met, not met, not compared."""


def as_markdown(decision: Decision, facts: str) -> str:
    """The decision for people.

    Args:
        decision: The decision.
        facts: A line on what was measured.
    """
    lines = [f"## {MARKS[decision.passed]} {decision.headline}", "", facts, ""]
    lines += [f"- {MARKS[passed]} {reason}" for passed, reason in decision.checks]
    return "\n".join(lines) + "\n"
