"""Timing the phases of a step, without holding up an accelerator."""

import time

import torch


class PhaseClock:
    """Marks where the phases of a step end.

    An accelerator works behind the host, so there a mark is an event in its queue, and is read once the queue has
    passed it. On a CPU a mark is the time.

    Args:
        device: Where the step computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str, float | torch.Event]] = [("", self._now())]

    def mark(self, phase: str) -> None:
        """The end of a phase, which is the beginning of the next."""
        self._marks.append((phase, self._now()))

    def seconds(self) -> dict[str, float]:
        """Seconds of every phase; waits until the device has passed the last mark."""
        _, last = self._marks[-1]
        if isinstance(last, torch.Event):
            last.synchronize()
        return {
            phase: _between(before, after)
            for (_, before), (phase, after) in zip(self._marks[:-1], self._marks[1:], strict=True)
        }

    def _now(self) -> float | torch.Event:
        if self._device.type == "cpu":
            return time.monotonic()
        event = torch.Event(device=self._device, enable_timing=True)
        event.record()
        return event


def _between(before: float | torch.Event, after: float | torch.Event) -> float:
    if isinstance(before, torch.Event) and isinstance(after, torch.Event):
        return float(before.elapsed_time(after)) / 1000
    assert isinstance(before, float) and isinstance(after, float)
    return after - before
