"""The rules that hold for every fault, and what each row of the table says."""

from dataclasses import dataclass, field

from tests.faults.trial import Trial
from tests.faults.world import DEADLINE_S, EVERY, Result, result_of


@dataclass
class Outcome:
    """What came of a fault.

    Attributes:
        lost: Steps made twice.
        bitwise: Whether the final weights equal the quiet run's; None where there is nothing to compare.
        what: Classes of the incidents.
        recovery_s: From the fault to the next step; None where training did not end.
        torchrun_s: Likewise under torchrun, or why there is no figure.
        problems: What falls short.
    """

    lost: int | None = None
    bitwise: bool | None = None
    what: str = ""
    recovery_s: float | None = None
    torchrun_s: float | str | None = None
    problems: list[str] = field(default_factory=list)

    def expect(self, holds: object, problem: str) -> None:
        """Note a rule that does not hold."""
        if not holds:
            self.problems.append(problem)

    @property
    def ratio(self) -> float | None:
        """Of our time and torchrun's."""
        if isinstance(self.torchrun_s, float) and self.recovery_s is not None:
            return self.recovery_s / self.torchrun_s
        return None


def judge(
    trial: Trial,
    quiet: Result,
    fault_at: float | None,
    *,
    what: str,
    limit_s: float | None = None,
    same_world: bool = True,
    tolerance: float = 0.02,
    max_lost: int = EVERY,
) -> Outcome:
    """Hold a run that came home against the quiet one.

    Args:
        trial: Its supervisor has ended.
        quiet: The run without a fault.
        fault_at: Time of the fault; None where it stops no step.
        what: Class that the one incident has to have; empty: there must be none.
        limit_s: Of the recovery; D + 1.5·C where it is None.
        same_world: Whether the same ranks finished it, so that the weights have to be the same bits.
        tolerance: Otherwise, of the final loss, relative.
        max_lost: Steps that may be lost.
    """
    outcome, result = Outcome(), result_of(trial.folder)
    classes = [incident.what for incident in trial.events("incident")]
    outcome.what = ", ".join(classes) or "-"
    outcome.expect(classes == ([what] if what else []), f"incidents are {classes}, not one of class {what or '-'}")
    outcome.lost = max(result.lost, default=0)
    outcome.expect(outcome.lost <= max_lost, f"{outcome.lost} steps were lost")
    _compare(outcome, result, quiet, same_world=same_world, tolerance=tolerance)
    if fault_at is not None:
        before = {event.attempt for event in trial.steps() if event.time <= fault_at}
        again = [e.time for e in trial.steps() if e.time > fault_at and e.attempt > max(before, default=0)]
        outcome.recovery_s = min(again) - fault_at if again else None
        limit = limit_s if limit_s is not None else DEADLINE_S + 1.5 * quiet.cold_s
        if outcome.recovery_s is None:
            outcome.problems.append("it never stepped again")
        else:
            outcome.expect(
                outcome.recovery_s <= limit,
                f"recovery took {outcome.recovery_s:.1f} s, and may take {limit:.1f} s",
            )
    return outcome


def _compare(outcome: Outcome, result: Result, quiet: Result, *, same_world: bool, tolerance: float) -> None:
    outcome.expect(sorted(result.steps) == sorted(quiet.steps), "not every step counts once")
    for number, step in result.steps.items():
        expected = quiet.steps.get(number)
        same = expected is not None and step.num_tokens == expected.num_tokens
        if not same or (same_world and step.loss != expected.loss):
            outcome.problems.append(f"step {number} saw other samples, or computed something else")
            break
    if same_world:
        outcome.bitwise = bool(result.weights) and result.weights == quiet.weights
        outcome.expect(outcome.bitwise, "the final weights differ from the quiet run's")
        return
    last = max(quiet.steps)
    if last in result.steps:
        off = abs(result.steps[last].loss / quiet.steps[last].loss - 1)
        outcome.expect(off <= tolerance, f"the final loss is off by {off:.2%}")
    outcome.expect(result.weights, "there is no model")
