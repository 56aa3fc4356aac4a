"""The gate's decision, which the evaluate step reached, carried out on the aliases."""

import json
from dataclasses import dataclass, replace
from typing import Any

from components.tracking.history import move_alias
from components.tracking.registry import CANDIDATE, alias_holder
from components.tracking.texts import shortened
from components.tracking.turn import turn
from training.errors import UserError
from training.run_folder import RunFolder

_GATE = "shardline.gate"
_REASONS = "shardline.gate_reasons"
_JUDGED = "shardline.gate_input"


@dataclass(frozen=True)
class Decision:
    """What the gate decided.

    Attributes:
        passed: Whether the alias moves.
        reasons: Whole sentences, one for each comparison.
        champion_version: The version that the tuned model was compared with; None if with none.
    """

    passed: bool
    reasons: tuple[str, ...]
    champion_version: str | None = None

    @property
    def word(self) -> str:
        """The decision as tags hold it."""
        return "passed" if self.passed else "failed"


def read_decision(folder: RunFolder) -> Decision:
    """Read what the evaluate step wrote.

    Raises:
        UserError: It did not run.
    """
    file = folder.evaluation / "gate.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"the gate's decision is missing in the run '{folder.run}': run the evaluate step first"
        ) from None
    champion = content.get("champion_version")
    return Decision(
        bool(content["passed"]), tuple(content["reasons"]), None if champion is None else str(champion)
    )


def recorded_decision(version: Any, judged: str) -> Decision | None:
    """The decision that an earlier run of the step carried out on the same measurements, or None."""
    if _GATE not in version.tags or version.tags.get(_JUDGED) != judged:
        return None
    return Decision(version.tags[_GATE] == "passed", tuple(version.tags.get(_REASONS, "").splitlines()))


def carry_out(
    client: Any, version: Any, alias: str, decision: Decision, judged: str, *, compares: bool
) -> Decision:
    """Move the aliases and record the decision on the version.

    Args:
        client: The `MlflowClient`.
        version: The run's version.
        alias: The alias that the gate guards.
        decision: The gate's.
        judged: Fingerprint of what was judged.
        compares: Whether the run is to be compared with the alias's holder at all.

    Returns:
        The decision, or that the alias stays since it moved to a version that was not compared with.
    """
    name, number = version.name, str(version.version)
    with turn(client, name):
        client.set_registered_model_alias(name, CANDIDATE, number)
        holder = alias_holder(client, name, alias)
        if decision.passed and holder not in {None, number, decision.champion_version}:
            judge = _not_compared if compares else _not_to_be_compared
            decision = judge(decision, alias, str(holder))
        if decision.passed and holder != number:
            move_alias(client, name, alias, number)
            if (now := alias_holder(client, name, alias)) != number:
                # By hand or by another program, which waits for nobody's turn.
                decision = _not_compared(decision, alias, str(now))
        # Last: a decision that is recorded has been carried out.
        client.set_model_version_tag(name, number, _REASONS, shortened("\n".join(decision.reasons)))
        client.set_model_version_tag(name, number, _JUDGED, judged)
        client.set_model_version_tag(name, number, _GATE, decision.word)
    return decision


def _not_compared(decision: Decision, alias: str, holder: str) -> Decision:
    compared = "no version" if decision.champion_version is None else f"version {decision.champion_version}"
    reason = (
        f"The alias {alias} belongs to version {holder} now, but the tuned model was compared with {compared}: "
        "run the evaluate step again, and then this one."
    )
    return Decision(False, (*decision.reasons, reason), decision.champion_version)


def _not_to_be_compared(decision: Decision, alias: str, holder: str) -> Decision:
    reason = (
        f"The alias {alias} moves from version {holder}, which the tuned model was not compared with, since "
        "evaluation.champion is false."
    )
    return replace(decision, reasons=(*decision.reasons, reason))
