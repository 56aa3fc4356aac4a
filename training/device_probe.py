"""A fixed piece of work for a device, and how long it takes."""

import time

import torch
import torch.distributed as dist

from training.device import to_device

_TARGET_S = 0.004
"""Long against the noise of a clock, short against a step."""


class DeviceProbe:
    """Times matrix products, as many as the fastest rank does in about four milliseconds. Collective.

    On an accelerator the work is queued with the step's own, and its time is read once the device has passed it.

    Args:
        device: Where this rank computes.
        group: Over the hosts.
    """

    def __init__(self, device: torch.device, group: dist.ProcessGroup) -> None:
        self._device = device
        on_cpu = device.type == "cpu"
        size, dtype = (256, torch.float32) if on_cpu else (2048, torch.bfloat16)
        # Not torch's own seed, which the training uses; and not zeros, which cost a device less power.
        generator = torch.Generator().manual_seed(0)
        self._factor = to_device(torch.randn(size, size, generator=generator).to(dtype), device)
        self._product = torch.empty_like(self._factor)
        self._queued: tuple[torch.Event, torch.Event] | None = None
        self._seconds = 0.0
        self._num_products = 1
        mine = torch.tensor(max(1, round(_TARGET_S / self._measure())))
        dist.all_reduce(mine, dist.ReduceOp.MAX, group)
        self._num_products = int(mine)

    def run(self) -> None:
        """Do the work; on an accelerator, queue it."""
        if self._device.type == "cpu":
            started = time.perf_counter()
            self._multiply()
            self._seconds = time.perf_counter() - started
            return
        begin, end = (torch.Event(device=self._device, enable_timing=True) for _ in range(2))
        begin.record()
        self._multiply()
        end.record()
        self._queued = begin, end

    def take(self) -> float:
        """Seconds that the work took; 0 where it is not done, or was taken before. Never waits."""
        if self._queued is not None and self._queued[1].query():
            begin, end = self._queued
            self._queued = None
            self._seconds = begin.elapsed_time(end) / 1000
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _measure(self) -> float:
        """Seconds of the work as it is; the first time is not counted."""
        measured = []
        for _ in range(4):
            self.run()
            if self._queued is not None:
                self._queued[1].synchronize()
            measured.append(self.take())
        return min(measured[1:])

    def _multiply(self) -> None:
        with torch.no_grad():
            for _ in range(self._num_products):
                torch.mm(self._factor, self._factor, out=self._product)
