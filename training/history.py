"""What the event stream tells of the training: the steps that count, and the attempts they took."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from training.events import Evaluation, Incident, TrainStep, read_events


@dataclass(frozen=True)
class Attempt:
    """One attempt at the training."""

    number: int
    first_step: int | None
    """None: it ended before its first step."""
    last_step: int | None
    incidents: tuple[Incident, ...]


@dataclass(frozen=True)
class History:
    """The training as its events tell it.

    Attributes:
        steps: One event per optimizer step, ascending; of a step computed twice, the later one. A step that was
            left out is none.
        attempts: The attempts, ascending.
        num_repeated: Steps that were computed again after a resume.
        heldout: The held-out losses that were taken in training, by step, ascending.
    """

    steps: tuple[TrainStep, ...]
    attempts: tuple[Attempt, ...]
    num_repeated: int
    heldout: Mapping[int, Evaluation] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Time within the steps that count."""
        return sum(step.seconds for step in self.steps)

    @property
    def num_tokens(self) -> int:
        """Tokens trained on, in the steps that count."""
        return sum(step.num_tokens for step in self.steps)

    @property
    def tokens_per_s(self) -> float | None:
        """Median over the steps, which a slow first step does not move; None without steps."""
        return _median(step.tokens_per_s for step in self.steps)

    @property
    def tokens_per_s_per_device(self) -> float | None:
        """Median over the steps, of one rank; None without steps."""
        return _median(step.tokens_per_s_per_device for step in self.steps)

    @property
    def supervised_tokens_per_s(self) -> float | None:
        """Median over the steps, over all ranks; None without steps."""
        return _median(step.supervised_tokens_per_s for step in self.steps)

    @property
    def fill(self) -> float | None:
        """Share of the computed positions that held a token; None where that was not counted."""
        counted = [step for step in self.steps if step.num_positions]
        positions = sum(step.num_positions or 0 for step in counted)
        return sum(step.num_tokens for step in counted) / positions if positions else None

    @property
    def tflops_per_device(self) -> float | None:
        """Median over the steps, in model TFLOP/s; None where it is not known."""
        return _median(step.tflops_per_device for step in self.steps)

    @property
    def mfu(self) -> float | None:
        """Median over the steps; None where it is not known."""
        return _median(step.mfu for step in self.steps)

    @property
    def split(self) -> dict[str, float]:
        """Seconds of all steps by where they went; empty where that was not measured."""
        parts = [step.split for step in self.steps]
        return {phase: sum(part.get(phase, 0.0) for part in parts) for phase in next(filter(None, parts), {})}

    @property
    def peak_memory_gib(self) -> float | None:
        """Highest memory of any rank at any step; None without steps."""
        return max((step.memory_gib for step in self.steps), default=None)

    @property
    def ended(self) -> float | None:
        """When the last step ended, in seconds since the epoch; None without steps."""
        return max((step.time for step in self.steps), default=None)


def read_history(events: Path) -> History:
    """Read the training's history from a run's event folder."""
    found = read_events(events)
    # By attempt before time: clocks of two machines may differ.
    steps = sorted(
        (event for event in found if isinstance(event, TrainStep) and not event.skipped),
        key=lambda step: (step.attempt, step.time),
    )
    latest = {step.step: step for step in steps}
    evaluations = sorted(
        (event for event in found if isinstance(event, Evaluation) and event.name == "step"),
        key=lambda evaluation: (evaluation.attempt, evaluation.time),
    )
    heldout = {evaluation.step: evaluation for evaluation in evaluations if evaluation.step is not None}
    incidents = [event for event in found if isinstance(event, Incident)]
    numbers = sorted({event.attempt for event in [*steps, *incidents]})
    return History(
        steps=tuple(latest[number] for number in sorted(latest)),
        attempts=tuple(_attempt(number, steps, incidents) for number in numbers),
        num_repeated=len(steps) - len(latest),
        heldout={number: heldout[number] for number in sorted(heldout)},
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _attempt(number: int, steps: list[TrainStep], incidents: list[Incident]) -> Attempt:
    own = [step.step for step in steps if step.attempt == number]
    return Attempt(
        number=number,
        first_step=min(own, default=None),
        last_step=max(own, default=None),
        incidents=tuple(incident for incident in incidents if incident.attempt == number),
    )
