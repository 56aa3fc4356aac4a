"""The gate: whether a tuned model may take the alias. A pure function of the measured losses."""

import math
from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True)
class Champion:
    """The version that holds the alias.

    Attributes:
        version: Its number in the registry.
        loss: Its held-out loss, in nats per supervised token; None if there is none on the same data.
    """

    version: str
    loss: float | None


@dataclass(frozen=True)
class Verdict:
    """What the gate decided.

    Attributes:
        passed: Whether the alias moves.
        reasons: Whole sentences, one for each comparison.
    """

    passed: bool
    reasons: tuple[str, ...]


def judge(base_loss: float, tuned_loss: float, min_improvement: float, champion: Champion | None) -> Verdict:
    """Compare the tuned model with its base, and with the version that holds the alias.

    Losses are held-out cross-entropies in nats per supervised token.

    Args:
        base_loss: Of the model before training.
        tuned_loss: Of the model after it.
        min_improvement: The tuned loss must be lower than the base loss by more than this.
        champion: The version that holds the alias, if it is another one than the one to judge.
    """
    for name, loss in (("base", base_loss), ("tuned", tuned_loss)):
        if not math.isfinite(loss):
            return Verdict(
                False, (f"The {name} model's held-out loss is {loss}, which nothing can be compared with.",)
            )
    checks = [_against_base(base_loss, tuned_loss, min_improvement)]
    if champion is not None:
        checks.append(_against_champion(tuned_loss, champion))
    return Verdict(all(passed for passed, _ in checks), tuple(reason for _, reason in checks))


def _against_base(base: float, tuned: float, min_improvement: float) -> tuple[bool, str]:
    # In binary, 2.5 - 2.4 is more than 0.1; people mean the decimals that they read.
    passed = _decimal(base) - _decimal(tuned) > _decimal(min_improvement)
    asked = f"by more than the {min_improvement:g} that registry.min_improvement asks for"
    if min_improvement == 0:
        asked = "as the gate asks for"
    if passed:
        return True, f"The held-out loss fell from {base:.6g} to {tuned:.6g}, {asked}."
    if tuned < base:
        return False, f"The held-out loss fell from {base:.6g} to {tuned:.6g}, but not {asked}."
    change = "stayed at" if tuned == base else f"rose from {base:.6g} to"
    return False, f"The held-out loss {change} {tuned:.6g}, where it must fall."


def _against_champion(tuned: float, champion: Champion) -> tuple[bool, str]:
    holder = f"version {champion.version}, which holds the alias"
    if champion.loss is None or not math.isfinite(champion.loss):
        return True, f"There is no held-out loss on the same data for {holder}, so the two are not compared."
    if tuned > champion.loss:
        return False, f"The held-out loss {tuned:.6g} is higher than the {champion.loss:.6g} of {holder}."
    return True, f"The held-out loss {tuned:.6g} is not higher than the {champion.loss:.6g} of {holder}."


def _decimal(value: float) -> Decimal:
    return Decimal(repr(float(value)))
