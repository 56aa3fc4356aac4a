"""Comparing the ranks' devices while they train."""

import os
import socket
import statistics
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from training.device_probe import DeviceProbe
from training.events import Alert
from training.stragglers import Straggler, StragglerDetector

NUM_PROBES = 20
"""In a window. A CPU that is held to a fifth of its time may do a single one at full speed."""

_SHARE = 0.003
"""Most of the training's time that probes may take where ranks are well."""


class DeviceComparison:
    """Lets all ranks do the same work at the same steps, and tells which is slow. Collective.

    Args:
        ratio: See `resilience.straggler_ratio`; None: nothing is done.
        device: Where this rank computes.
        group: Over the hosts.
    """

    def __init__(self, ratio: float | None, device: torch.device, group: dist.ProcessGroup) -> None:
        self._probe: DeviceProbe | None = None
        num_ranks = dist.get_world_size()
        if ratio is None or num_ranks == 1:
            return
        self._probe = DeviceProbe(device, group)
        self._detector = StragglerDetector(ratio)
        self._hosts: list[str] = [""] * num_ranks
        dist.all_gather_object(self._hosts, os.environ.get("SHARDLINE_HOST", socket.gethostname()), group)
        self._windows: list[list[float]] = [[] for _ in self._hosts]
        self._is_wanted = False
        self._every_s = 0.0
        self._asked_at = time.monotonic()

    def run(self) -> None:
        """Do the work, if all ranks are to."""
        if self._probe is not None and self._is_wanted:
            self._is_wanted = False
            self._probe.run()

    def take(self) -> float:
        """Seconds that the work took on this rank; 0 where there is nothing new."""
        return 0.0 if self._probe is None else self._probe.take()

    def asks(self) -> bool:
        """Whether it is time for the work again; the first rank's answer counts for all."""
        if self._probe is None or time.monotonic() - self._asked_at < self._every_s:
            return False
        self._asked_at = time.monotonic()
        return True

    def learn(self, seconds: Sequence[float], *, is_wanted: bool) -> list[Alert]:
        """Take what came of a step.

        Args:
            seconds: Of every rank, as `take` gave them.
            is_wanted: Whether all ranks are to do the work at the next step.

        Returns:
            What people should know, the same on all ranks.
        """
        if self._probe is None:
            return []
        self._is_wanted |= is_wanted
        taken = [value for value in seconds if value]
        if taken:
            # Of a rank that is well: a slow one must not be found later the slower it is.
            self._every_s = min(taken) / _SHARE
        for window, value in zip(self._windows, seconds, strict=True):
            window += [value] if value else []
        if min(map(len, self._windows)) < NUM_PROBES:
            return []
        means = [statistics.fmean(window) for window in self._windows]
        self._windows = [[] for _ in means]
        return [self._alert(straggler) for straggler in self._detector.judge(means)]

    def _alert(self, straggler: Straggler) -> Alert:
        host = self._hosts[straggler.rank]
        slow, others = 1000 * straggler.seconds, 1000 * straggler.others_s
        return Alert(
            what="straggler",
            rank=straggler.rank,
            host=host,
            text=f"rank {straggler.rank} on {host} is slow: it takes {slow:.1f} ms for what takes the others "
            f"{others:.1f} ms, twice in a row over {NUM_PROBES} measurements",
        )
