"""How far a rank's host may run ahead of its accelerator."""

from collections import deque

import torch

_MICRO_BATCHES = 2
"""One that the device works on, and one that waits, so that it never runs dry."""


class RunAhead:
    """Keeps the host close to its device.

    A host queues the work of a whole step in a fraction of the step's time. Then a request to stop would be seen a
    step late, and nobody could tell how far the device has come.

    Args:
        device: Where the step computes; a CPU is never behind.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._queued: deque[torch.Event] = deque()

    def wait(self) -> None:
        """Before a micro-batch is queued: wait until at most one is before it that the device has not begun."""
        if self._device.type == "cpu":
            return
        if len(self._queued) == _MICRO_BATCHES:
            self._queued.popleft().synchronize()
        event = torch.Event(device=self._device)
        event.record()
        self._queued.append(event)
