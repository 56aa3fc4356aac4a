"""FSDP's collectives through shared memory, for ranks that compute on the CPUs of one host.

gloo sends bytes from rank to rank through the loopback network, by the very cores that the model is computed on.
Here ranks copy through a region of shared memory that is small enough to stay in the cache. It is handed to FSDP
through the interface that it has for such replacements.

Every rank has two buffers in the region, which it fills in turns. One barrier for each piece is enough: a rank
that passes it knows that all have written this piece, so all have read the piece before, whose buffer is next.
"""

import mmap
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

_REGION_BYTES = 2**25
_MAX_BUFFER_BYTES = 2**22
_CACHE_LINE = 64
_YIELDS = 1000
_TIMEOUT_S = 600.0


def use_shared_memory(model: torch.nn.Module, group: dist.ProcessGroup) -> bool:
    """Let a model's shards be exchanged through shared memory. Collective over `group`.

    Args:
        model: Sharded over `group`, on CPUs.
        group: The ranks that share the model's parameters.

    Returns:
        Whether it is so; not if the ranks are on several hosts, or the host has no such memory left.
    """
    region = _Region.open(group)
    if region is None:
        return False
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(_AllGather(region))
            module.set_custom_reduce_scatter(_ReduceScatter(region))
    return True


class _Region:
    """The memory that the ranks of a group share."""

    def __init__(self, memory: mmap.mmap, rank: int, pids: list[int]) -> None:
        self.rank = rank
        self.world_size = len(pids)
        self._pids = pids
        self._memory = memory
        counters = np.frombuffer(memory, np.int64, self.world_size * _CACHE_LINE // 8)
        # A cache line each, so that ranks do not take them from one another.
        self._arrived = counters.reshape(self.world_size, -1)[:, 0]
        self._count = 0
        self.buffer_bytes = _buffer_bytes(self.world_size)
        size = (self.world_size, 2, self.buffer_bytes)
        flat = torch.frombuffer(
            memory, dtype=torch.uint8, count=int(np.prod(size)), offset=self.world_size * _CACHE_LINE
        )
        self._buffers = flat.view(size)

    @classmethod
    def open(cls, group: dist.ProcessGroup) -> "_Region | None":
        """Make and open the region; None, on all ranks, if one of them cannot."""
        rank = group.rank()
        pids: list[int] = [0] * group.size()
        dist.all_gather_object(pids, os.getpid(), group=group)
        descriptor = _create(group.size()) if rank == 0 else None
        paths = [None if descriptor is None else f"/proc/{os.getpid()}/fd/{descriptor}"]
        dist.broadcast_object_list(paths, group=group, group_src=0)
        memory = _map(paths[0], pids)
        opened: list[bool] = [False] * group.size()
        dist.all_gather_object(opened, memory is not None, group=group)
        if descriptor is not None:
            os.close(descriptor)
        return cls(memory, rank, pids) if memory is not None and all(opened) else None

    def buffer(self, rank: int, dtype: torch.dtype) -> torch.Tensor:
        """A rank's buffer for the piece that is next, or that was just exchanged."""
        return self._buffers[rank, self._count % 2].view(dtype)

    def next(self) -> None:
        """Turn to the other buffers."""
        self._count += 1

    def barrier(self) -> None:
        """Wait until all ranks are here.

        Raises:
            RuntimeError: A rank has died, or does not come.
        """
        wanted = self._count + 1
        self._arrived[self.rank] = wanted
        yields = 0
        started = looked = time.monotonic()
        while self._arrived.min() < wanted:
            yields += 1
            if yields < _YIELDS:
                os.sched_yield()
                continue
            # Whoever is late computes, and needs the cores.
            time.sleep(0.0001)
            now = time.monotonic()
            if now - looked > 1:
                looked = now
                self._look_for_the_dead(now - started)

    def _look_for_the_dead(self, waited_s: float) -> None:
        late = [rank for rank in range(self.world_size) if self._arrived[rank] <= self._count]
        for rank in late:
            if not _is_alive(self._pids[rank]):
                raise RuntimeError(f"rank {rank} of the group has died")
        if late and waited_s > _TIMEOUT_S:
            raise RuntimeError(f"rank {late[0]} of the group did not come for {_TIMEOUT_S:.0f} s")


class _Allocating:
    def __init__(self, region: _Region) -> None:
        self._region = region

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for FSDP's inputs and outputs."""
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Allocating, AllGather):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        """Copy every rank's `input_tensor` [n] to its place in `output_tensor` [ranks × n]."""
        region = self._region
        source = input_tensor.view(torch.uint8)
        target = output_tensor.view(torch.uint8).view(region.world_size, -1)
        if target[region.rank].data_ptr() != source.data_ptr():
            target[region.rank].copy_(source)
        for first in range(0, len(source), region.buffer_bytes):
            part = slice(first, min(first + region.buffer_bytes, len(source)))
            length = part.stop - part.start
            region.buffer(region.rank, torch.uint8)[:length].copy_(source[part])
            region.barrier()
            for rank in range(region.world_size):
                if rank != region.rank:
                    target[rank, part].copy_(region.buffer(rank, torch.uint8)[:length])
            region.next()


class _ReduceScatter(_Allocating, ReduceScatter):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,
        async_op: bool = False,
    ) -> None:
        """Sum the ranks' `input_tensor` [ranks × n], and keep this rank's n in `output_tensor`.

        The order of the sum is that of the ranks, so it is the same in every run.
        """
        assert op == dist.ReduceOp.SUM
        region, dtype = self._region, input_tensor.dtype
        source = input_tensor.view(region.world_size, -1)
        at_once = region.buffer_bytes // dtype.itemsize // region.world_size
        for first in range(0, len(output_tensor), at_once):
            part = slice(first, min(first + at_once, len(output_tensor)))
            length = part.stop - part.start
            mine = region.buffer(region.rank, dtype)[: region.world_size * length].view(-1, length)
            for rank in range(region.world_size):
                if rank != region.rank:
                    mine[rank].copy_(source[rank, part])
            region.barrier()
            total = output_tensor[part]
            for rank in range(region.world_size):
                theirs = region.buffer(rank, dtype)[region.rank * length : (region.rank + 1) * length]
                addend = source[rank, part] if rank == region.rank else theirs
                total.copy_(addend) if rank == 0 else total.add_(addend)
            region.next()


def _buffer_bytes(world_size: int) -> int:
    return min(_MAX_BUFFER_BYTES, _REGION_BYTES // (2 * world_size)) // 4096 * 4096


def _create(world_size: int) -> int | None:
    """A file of zeros in memory, without a name that could outlive its processes; None where it cannot be had."""
    # Counters are plain numbers, and only these processors let others see writes in their order.
    if platform.machine() not in ("x86_64", "AMD64") or not hasattr(os, "memfd_create"):
        return None
    descriptor = os.memfd_create("shardline")
    try:
        # Now, rather than by a bus error when it is first written to.
        os.posix_fallocate(descriptor, 0, world_size * (_CACHE_LINE + 2 * _buffer_bytes(world_size)))
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _map(path: str | None, pids: list[int]) -> mmap.mmap | None:
    """Open the region; None if it, or a process of the group, is not on this host."""
    if path is None or not all(_is_alive(pid) for pid in pids):
        return None
    try:
        with Path(path).open("r+b") as file:
            return mmap.mmap(file.fileno(), 0)
    except OSError:
        return None


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
