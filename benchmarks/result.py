"""What a training run of any side comes to."""

import statistics
from dataclasses import dataclass

WARMUP_STEPS = 2
"""First steps of a run that are not timed: allocators, caches and compilers settle in them."""


@dataclass(frozen=True)
class Result:
    """What a training run of any side comes to.

    Attributes:
        losses: Of each step, in nats per supervised token.
        seconds: Wall time of each step.
        peak_bytes: Highest resident set of any rank.
    """

    losses: list[float]
    seconds: list[float]
    peak_bytes: int

    def rate(self, num_supervised: list[int]) -> float:
        """Supervised tokens a second: the median over the steps after the warm-up.

        Args:
            num_supervised: Of each step.
        """
        timed = zip(num_supervised[WARMUP_STEPS:], self.seconds[WARMUP_STEPS:], strict=True)
        return statistics.median(tokens / seconds for tokens, seconds in timed)


def loss_difference(one: Result, other: Result) -> float:
    """Greatest relative difference between the losses of two runs, over their steps."""
    return max(abs(a - b) / abs(b) for a, b in zip(one.losses, other.losses, strict=True))
