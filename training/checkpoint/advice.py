"""Watches a run's first saves, and says once how often it should save."""

import os
import time
from pathlib import Path

import torch.distributed as dist

from training.checkpoint.interval import SaveCost, mean_time_between_failures_s, suggestion
from training.events import Incident, read_events


class IntervalAdvice:
    """On rank 0. The first save is not counted: it is slower than those that follow.

    Args:
        events: The run's, whose incidents count as failures.
    """

    def __init__(self, events: Path) -> None:
        self._events = events
        self._saves: list[tuple[int, float]] = []
        self._held_up_s = 0.0
        self._is_given = False

    def saved(self, step: int, started: float) -> None:
        """A save's call has returned.

        Args:
            step: Of the save.
            started: When it was called, by the monotonic clock.
        """
        self._saves.append((step, started))
        self._held_up_s = time.monotonic() - started

    def held_up(self, seconds: float) -> None:
        """The next update had to wait for the save."""
        self._held_up_s += seconds

    def written(self, seconds: float) -> str | None:
        """A save was written; the suggestion, once, after the second save."""
        if self._is_given or len(self._saves) < 2:
            return None
        self._is_given = True
        (before, began), (step, again) = self._saves[-2:]
        cost = SaveCost(self._held_up_s, seconds, again - began, step - before)
        return suggestion(cost, mean_time_between_failures_s(_num_nodes(), *self._failures()))

    def _failures(self) -> tuple[int, float]:
        """Incidents so far, and the seconds since the run began."""
        events = read_events(self._events)
        incidents = sum(isinstance(event, Incident) for event in events)
        return incidents, time.time() - events[0].time if events else 0.0


def _num_nodes() -> int:
    return max(1, dist.get_world_size() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
