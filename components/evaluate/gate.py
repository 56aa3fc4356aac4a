"""The gate: whether a tuned model may take the alias. A pure function of what was measured."""

import math
from dataclasses import dataclass
from decimal import Decimal

from components.evaluate.results import ModelResult
from training.config import GateConfig


@dataclass(frozen=True)
class Verdict:
    """What the gate decided.

    Attributes:
        passed: Whether the alias may move.
        checks: One for each rule: whether it is met, and why, as a whole sentence.
    """

    passed: bool
    checks: tuple[tuple[bool, str], ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences."""
        return tuple(reason for _, reason in self.checks)


def judge(
    gate: GateConfig, tuned: ModelResult, base: ModelResult, champion: ModelResult | None, who: str = ""
) -> Verdict:
    """Hold the tuned model against every rule.

    Args:
        gate: The rules.
        tuned: The model to judge.
        base: The model before training.
        champion: The version that holds the alias, measured on the same rows; None: there is none to compare
            with.
        who: The champion, for people: `version 3, which holds the alias champion`.
    """
    checks = [_against_base(gate, tuned, base)]
    if gate.significant:
        checks.append(_is_certain(gate, tuned))
    if champion is not None:
        checks.append(_against_champion(gate, tuned, champion, who))
    checks += [_above_floor(name, least, tuned) for name, least in gate.floors.items()]
    checks += [_not_forgotten(name, most, tuned, base) for name, most in gate.max_drops.items()]
    return Verdict(all(passed for passed, _ in checks), tuple(checks))


def _against_base(gate: GateConfig, tuned: ModelResult, base: ModelResult) -> tuple[bool, str]:
    before, after, least = base.loss, tuned.loss, gate.min_improvement
    if not math.isfinite(before) or not math.isfinite(after):
        return False, f"The held-out losses are {before} and {after}, which cannot be compared."
    # In binary, 2.5 - 2.4 is more than 0.1; people mean the decimals that they read.
    passed = _decimal(before) - _decimal(after) > _decimal(least)
    asked = f"by more than the {least:g} that registry.gate.min_improvement asks for"
    if least == 0:
        asked = "as the gate asks for"
    if passed:
        return True, f"The held-out loss fell from {before:.6g} to {after:.6g}, {asked}."
    if after < before:
        return False, f"The held-out loss fell from {before:.6g} to {after:.6g}, but not {asked}."
    change = "stayed at" if after == before else f"rose from {before:.6g} to"
    return False, f"The held-out loss {change} {after:.6g}, where it must fall."


def _is_certain(gate: GateConfig, tuned: ModelResult) -> tuple[bool, str]:
    change = tuned.changes["base"]
    if change.high is None or change.low is None:
        return False, (
            "registry.gate.significant asks for a certain improvement, but of a single held-out document there is "
            "no confidence interval: hold out more rows."
        )
    # The change is tuned − base: an improvement is its negative.
    least, most = -change.high, -change.low
    interval = f"{least:.4g} to {most:.4g} nats per token with 95 % confidence".replace("-", "−")
    asked = "0" if gate.min_improvement == 0 else f"{gate.min_improvement:g}"
    if least > gate.min_improvement:
        return True, f"The improvement is {interval}, all of it above {asked}."
    return False, f"The improvement is {interval}, not all of it above {asked}: it may be chance."


def _against_champion(gate: GateConfig, tuned: ModelResult, champion: ModelResult, who: str) -> tuple[bool, str]:
    mine, theirs, most = tuned.loss, champion.loss, gate.max_regression
    if not math.isfinite(mine) or not math.isfinite(theirs):
        return False, f"The held-out loss is {mine}, which cannot be compared with the {theirs:.6g} of {who}."
    passed = _decimal(mine) - _decimal(theirs) <= _decimal(most)
    if mine <= theirs:
        return passed, f"The held-out loss {mine:.6g} is not higher than the {theirs:.6g} of {who}."
    higher = f"The held-out loss {mine:.6g} is higher than the {theirs:.6g} of {who}"
    allowed = f"registry.gate.max_regression allows {most:g}"
    if passed:
        return True, f"{higher}, as far as {allowed}."
    return False, f"{higher}{'' if most == 0 else f', but {allowed}'}."


def _above_floor(name: str, least: float, tuned: ModelResult) -> tuple[bool, str]:
    if name in tuned.lower_is_better:
        return False, (
            f"registry.gate.floors names {name}, of which lower is better, so it has no floor: see to it with "
            "registry.gate.max_drops, which is how much worse it may become."
        )
    found = _score(tuned, name)
    if found is None:
        return False, _not_comparable("floors", name, tuned)
    if _decimal(found) >= _decimal(least):
        return True, f"{name} is {found:.4g}, at least the {least:g} that registry.gate.floors asks for."
    return False, f"{name} is {found:.4g}, below the {least:g} that registry.gate.floors asks for."


def _not_forgotten(name: str, most: float, tuned: ModelResult, base: ModelResult) -> tuple[bool, str]:
    after, before = _score(tuned, name), _score(base, name)
    if after is None or before is None:
        return False, _not_comparable("max_drops", name, tuned if after is None else base)
    went = f"{name} went from {before:.4g} to {after:.4g}"
    better, worse = _decimal(before), _decimal(after)
    loss = "drop"
    if name in tuned.lower_is_better:
        better, worse, loss = worse, better, "rise"
    if better - worse <= _decimal(most):
        return True, f"{went}, a {loss} of no more than the {most:g} that registry.gate.max_drops allows."
    return False, f"{went}, a {loss} of more than the {most:g} that registry.gate.max_drops allows."


def _score(result: ModelResult, name: str) -> float | None:
    """A score that can be compared."""
    found = result.scores.get(name)
    return found.value if found is not None and math.isfinite(found.value) else None


def _not_comparable(rule: str, name: str, result: ModelResult) -> str:
    names = f"registry.gate.{rule} names {name}, which"
    if name in result.scores:
        return f"{names} is {result.scores[name].value} for the {result.name} model and cannot be compared."
    there = f"measured were {', '.join(result.scores)}" if result.scores else "no scores were measured"
    return f"{names} was not measured: {there}."


def _decimal(value: float) -> Decimal:
    return Decimal(repr(float(value)))
