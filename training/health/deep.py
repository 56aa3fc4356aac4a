"""One rank's way through the deep checks: products that all ranks compute, then all-reduces between nodes.

Ranks talk through the store of the rendezvous alone, so that a broken link or a rank that hangs is found and
named, where a process group over all ranks would just not come up.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from training.device import default_device, use_device
from training.guard.place import host_name
from training.health.blame import Blame, Burn, judge_burns
from training.health.burn import Products, rounding_kind
from training.health.deep_result import DeepResult
from training.health.links import time_all_reduce
from training.health.pairing import PairTime, Schedule, first_round, judge_pairs, second_round
from training.health.policy import Thresholds

_CALIBRATION = 3
"""Rounds by which the number of rounds is set."""

_START_S = 600.0
"""For all ranks to come and have their devices ready."""

_SLOWEST = 10.0
"""A rank that takes so many times as long as planned is taken for hung."""


class DeepChecks:
    """One rank of them.

    Args:
        limits: Thresholds.
        store: Shared by all ranks; nothing else uses its keys.
        rank: Global.
        world_size: Number of ranks.
        alive: Called now and then, as a sign of life.
        say: Tells people.
    """

    def __init__(
        self,
        limits: Thresholds,
        store: dist.Store,
        rank: int,
        world_size: int,
        alive: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self._limits = limits
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._alive = alive
        self._say = say
        self._device = default_device()
        self._node = int(os.environ.get("GROUP_RANK", "0"))
        self._ranks_per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._nodes: dict[int, list[int]] = {}
        self._hosts: dict[int, str] = {}

    def run(self) -> DeepResult | None:
        """Do this rank's part; the result on rank 0, None on all others."""
        use_device(self._device)
        self._meet_others()
        mine, tflops = self._burn()
        self._put(f"burn/{self._rank}", {**asdict(mine), "tflops": tflops})
        told = self._collect("burn", self._limits.burn_s * _SLOWEST + 60)
        burns = [_as_burn(told[rank]) for rank in sorted(told)]
        silent = [rank for rank in range(self._world_size) if rank not in told]
        rounds = ((), ()) if silent else self._measure_links()
        result = None
        if self._rank == 0:
            hosts = [self._hosts[node] for node in sorted(self._hosts)]
            ratio = self._limits.deep_straggler_ratio
            blames = [
                *(self._hung(rank) for rank in silent),
                *judge_burns(burns, ratio),
                *judge_pairs(*rounds, hosts, ratio),
            ]
            result = DeepResult(
                hosts=tuple(hosts),
                burns=tuple(burns),
                burn_tflops=tuple(told[burn.rank]["tflops"] for burn in burns),
                pairs=rounds,
                pair_bytes=self._pair_bytes,
                ranks_per_node=self._ranks_per_node,
                blames=tuple(blames),
            )
        return result

    def leave_together(self) -> None:
        """Wait for rank 0 to have written the result: a launcher may take the first to leave as the end."""
        if self._rank == 0:
            self._put("done", True)
            # The store lives in this process where torchrun does not keep it: let the others read it.
            self._collect("left", 10)
        else:
            self._get("done", _START_S)
            self._put(f"left/{self._rank}", True)

    @property
    def _pair_bytes(self) -> int:
        return int(self._limits.pair_mib * 2**20)

    def _meet_others(self) -> None:
        self._put(f"who/{self._rank}", {"node": self._node, "host": host_name()})
        for rank, who in self._collect("who", _START_S).items():
            self._nodes.setdefault(who["node"], []).append(rank)
            self._hosts[who["node"]] = who["host"]

    def _burn(self) -> tuple[Burn, float]:
        products = Products(self._device)
        _, seconds = products.burn(_CALIBRATION, self._alive)
        if self._rank == 0:
            _, seconds = products.burn(_CALIBRATION, self._alive)
            self._put("rounds", max(_CALIBRATION, round(self._limits.burn_s * _CALIBRATION / seconds)))
        rounds = self._get("rounds", _START_S)
        self._say(f"{rounds} rounds of matrix products on {self._world_size} {self._device.type} ranks")
        results, seconds = products.burn(rounds, self._alive)
        burn = Burn(self._rank, host_name(), rounding_kind(self._device), results, round(seconds, 4))
        return burn, round(products.flops * rounds / seconds / 1e12, 3)

    def _measure_links(self) -> tuple[tuple[PairTime, ...], tuple[PairTime, ...]]:
        num_nodes = len(self._nodes)
        if num_nodes < 2:
            return (), ()
        self._say(f"all-reduces of {self._limits.pair_mib:g} MiB between {num_nodes} nodes, two by two")
        first = self._round("first", first_round(num_nodes))
        # By the same numbers every rank comes to the same pairs.
        return first, self._round("second", second_round(num_nodes, first))

    def _round(self, name: str, schedule: Schedule) -> tuple[PairTime, ...]:
        times: list[PairTime] = []
        for turn, pairs in enumerate(schedule):
            key = f"{name}/{turn}"
            for pair in pairs:
                if self._node in pair:
                    self._put(f"{key}/{self._rank}", self._time(f"{key}/{pair}", pair))
            self._alive()
            busy = [rank for pair in pairs for node in pair for rank in self._nodes[node]]
            told = self._collect(key, self._limits.pair_timeout_s + 30, busy)
            times += [
                PairTime(pair, max(told.get(rank, float("inf")) for node in pair for rank in self._nodes[node]))
                for pair in pairs
            ]
        return tuple(times)

    def _time(self, key: str, pair: tuple[int, int]) -> float:
        ranks = sorted(rank for node in pair for rank in self._nodes[node])
        own = dist.PrefixStore(f"links/{key}", self._store)
        return time_all_reduce(own, ranks, self._rank, self._device, self._pair_bytes, self._limits.pair_timeout_s)

    def _hung(self, rank: int) -> Blame:
        host = next(self._hosts[node] for node, ranks in self._nodes.items() if rank in ranks)
        return Blame("faulty", (host,), f"rank {rank} on {host} did not finish its matrix products")

    def _put(self, key: str, value: Any) -> None:
        self._store.set(key, json.dumps(value))

    def _get(self, key: str, timeout_s: float) -> Any:
        self._store.wait([key], timedelta(seconds=timeout_s))
        return json.loads(self._store.get(key))

    def _collect(self, prefix: str, timeout_s: float, ranks: list[int] | None = None) -> dict[int, Any]:
        """What ranks have put, by rank; without those that did not in time.

        Raises:
            RuntimeError: Not even this rank's own is there, or everybody has to come (`who`) and did not.
        """
        deadline = time.monotonic() + timeout_s
        found = {}
        for rank in range(self._world_size) if ranks is None else ranks:
            if prefix == "left" and rank == 0:
                continue
            try:
                found[rank] = self._get(f"{prefix}/{rank}", max(0.1, deadline - time.monotonic()))
            except dist.DistStoreError:
                if prefix == "who":
                    raise RuntimeError(
                        f"rank {rank} did not come to the deep checks within {timeout_s:g} s"
                    ) from None
            self._alive()
        return found


def deep_store(attempt: int) -> tuple[dist.Store, int, int]:
    """The store of the rendezvous for the deep checks of an attempt, this rank and the number of ranks."""
    from torch.distributed.rendezvous import rendezvous

    store, rank, world_size = next(rendezvous("env://", timeout=timedelta(seconds=_START_S)))
    return dist.PrefixStore(f"deep-{attempt}", store), rank, world_size


def _as_burn(told: dict[str, Any]) -> Burn:
    fields = {name: value for name, value in told.items() if name != "tflops"}
    return Burn(**{**fields, "results": tuple(map(tuple, fields["results"]))})
