"""From the event stream to MLflow's metrics.

A run's points come in groups that belong together, such as all metrics of one step. The x-axis is the step; to see
a curve over tokens, edit its chart in MLflow and choose Metric and `train/tokens` as x-axis, which the values are
joined with by their step, or look at `by_tokens/…`, whose step is the number of tokens trained on. System metrics
have MLflow's names, so that its tab for them shows them; their step is the seconds since the run began.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from training.events import Evaluation, System, TrainStep
from training.ledger import Totals


@dataclass(frozen=True)
class Point:
    """One value of a metric, as MLflow keeps it."""

    key: str
    value: float
    timestamp: int
    """Milliseconds since the epoch: of the event and not of now, so that logging it again gives the very same."""
    step: int


Group = tuple[Point, ...]
"""Points that are logged together; the last one tells whether the group was logged before."""


def step_group(event: TrainStep, tokens: int) -> Group:
    """The metrics of an optimizer step.

    Args:
        event: The step.
        tokens: Trained on until its end.
    """
    values = {
        "worst_rank_loss": event.worst_rank_loss,
        "grad_norm": event.grad_norm,
        "learning_rate": event.learning_rate,
        "tokens": tokens,
        "tokens_per_s": event.tokens_per_s,
        "tokens_per_s_per_device": event.tokens_per_s_per_device,
        "supervised_tokens_per_s": event.supervised_tokens_per_s,
        "fill": event.fill,
        "tflops_per_device": event.tflops_per_device,
        "mfu": event.mfu,
        "memory_gib": event.memory_gib,
        "seconds": event.seconds,
        **{f"seconds_{phase}": seconds for phase, seconds in event.split.items()},
    }
    time = milliseconds(event.time)
    return (
        *(Point(f"train/{name}", value, time, event.step) for name, value in values.items() if value is not None),
        Point("by_tokens/train_loss", event.loss, time, tokens),
        Point("train/loss", event.loss, time, event.step),
    )


def heldout_group(event: Evaluation, tokens: int) -> Group:
    """The held-out loss that was taken while training.

    Args:
        event: The measurement, which has a step.
        tokens: Trained on until then.
    """
    assert event.step is not None
    time = milliseconds(event.time)
    return (
        Point("by_tokens/heldout_loss", event.loss, time, tokens),
        Point("heldout/loss", event.loss, time, event.step),
    )


def system_group(event: System, began: int, several_nodes: bool) -> Group:
    """What a node's machine did.

    Args:
        event: The sample.
        began: When the run began, in milliseconds since the epoch.
        several_nodes: Whether the node's name has to tell it from others.
    """
    time = milliseconds(event.time)
    prefix = f"system/{event.source}/" if several_nodes else "system/"
    step = max(0, (time - began) // 1000)
    return tuple(Point(f"{prefix}{name}", value, time, step) for name, value in sorted(event.values.items()))


def goodput_group(totals: Totals) -> Group:
    """What the run's time went into until now, in seconds by bucket, and the share of the steps that count.

    Args:
        totals: Of the whole run; their end is the points' time, and their wall time in seconds the step.
    """
    time, step = totals.end // 1000, round(totals.wall_s)
    values = {f"goodput/{bucket}": seconds for bucket, seconds in totals.seconds.items()}
    return (
        *(Point(name, value, time, step) for name, value in values.items()),
        Point("goodput", totals.goodput, time, step),
    )


class TokenCount:
    """Tokens trained on until each step, from the steps that are known."""

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}
        self._until: dict[int, int] = {0: 0}

    def add(self, steps: Iterable[TrainStep]) -> None:
        """Take in steps; one that was computed again counts once."""
        self._tokens |= {event.step: event.num_tokens for event in steps}
        total = 0
        for step in sorted(self._tokens):
            total += self._tokens[step]
            self._until[step] = total

    def until(self, step: int) -> int:
        """Tokens until the end of a step."""
        known = [number for number in self._until if number <= step]
        return self._until[max(known)]


def milliseconds(seconds: float) -> int:
    """MLflow's time."""
    return int(seconds * 1000)
