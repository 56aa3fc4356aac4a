"""A measured figure, its goal, and how it is printed."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One figure, measured several times in one run.

    Attributes:
        name: `<benchmark>.<what>`, with the unit at its end where it has one.
        values: One for each repetition.
        at_least: The goal, where more is better.
        at_most: The goal, where less is better. With neither, the figure is there for scale.
    """

    name: str
    values: Sequence[float]
    at_least: float | None = None
    at_most: float | None = None

    @property
    def value(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def falls_short(self) -> bool:
        """Whether the median misses the goal. A figure that is not a number does."""
        if self.at_least is not None:
            return not self.value >= self.at_least
        return self.at_most is not None and not self.value <= self.at_most

    @property
    def goal(self) -> str:
        """The goal, for people."""
        if self.at_least is not None:
            return f">={self.at_least:g}"
        return "-" if self.at_most is None else f"<={self.at_most:g}"

    def __str__(self) -> str:
        spread = f"{self.value:.4g} ({min(self.values):.4g}..{max(self.values):.4g})"
        verdict = "-" if self.goal == "-" else "short" if self.falls_short else "ok"
        return f"{self.name:<50} {spread:<32} {self.goal:<8} {verdict}"
