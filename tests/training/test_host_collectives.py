"""Collectives through shared memory: the same as gloo's, and over when a rank has died."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from tests.collectives import CountCollectives
from tests.runs import as_sample, llama_config, packed_rows, run_ranks, save_model
from training import host_collectives
from training.config import ParallelConfig
from training.data import collate
from training.head import SummedLoss
from training.host_collectives import _AllGather, _ReduceScatter, _Region
from training.model import build_on_meta, load_weights, materialize
from training.sharding import make_mesh, shard_model

CPU = torch.device("cpu")


def compare(rank, size, dtype):
    group = dist.group.WORLD
    host_collectives._MAX_BUFFER_BYTES = 4096
    region = _Region.open(group)
    assert region is not None and region.buffer_bytes == 4096
    world = dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        mine = torch.randn(size, dtype=torch.float64, generator=generator).to(dtype)
        expected, found = mine.new_empty(world * size), mine.new_empty(world * size)
        dist.all_gather_single(expected, mine)
        # As FSDP calls it: the input is its own place in the output.
        place = found[rank * size : (rank + 1) * size].copy_(mine)
        _AllGather(region)(found, place, group)
        assert torch.equal(found, expected)
        whole = torch.randn(world * size, dtype=torch.float64, generator=generator).to(dtype)
        exact = whole.double().clone()
        dist.all_reduce(exact)
        found = whole.new_empty(size)
        _ReduceScatter(region)(found, whole, group, dist.ReduceOp.SUM)
        bound = 8 * torch.finfo(dtype).eps
        assert torch.allclose(found.double(), exact[rank * size : (rank + 1) * size], rtol=bound, atol=bound)


# Sizes that fill buffers exactly, leave a rest, and fit one.
@pytest.mark.parametrize(("world_size", "size"), [(2, 2048), (3, 1000), (4, 5), (2, 3001)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equal_to_those_of_gloo(world_size, size, dtype):
    run_ranks(world_size, compare, size, dtype)


def train_both_ways(rank, folder, strategy):
    gradients = []
    for shared in (False, True):
        model = build_on_meta(folder, "auto", torch.float64)
        parallel = ParallelConfig(strategy=strategy, shard_group_size=2 if strategy == "HYBRID_SHARD" else None)
        mesh = make_mesh(parallel, CPU, dist.get_world_size(), 2)
        shard_model(model, mesh, strategy, torch.float64)
        materialize(model, CPU)
        load_weights(model, folder)
        if shared:
            assert host_collectives.use_shared_memory(model, mesh["shard"].get_group())
        batch = collate([as_sample(packed_rows(1, seed=rank)[0])], CPU)
        with CountCollectives() as seen:
            SummedLoss(model)(batch).backward()
        assert bool(seen.counts["all_gather"]) != shared
        gradients.append([p.grad.to_local() for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(
    ("world_size", "strategy"), [(3, "FULL_SHARD"), (2, "SHARD_GRAD_OP"), (4, "HYBRID_SHARD")]
)
def test_gradients_are_those_of_gloo(world_size, strategy, tmp_path):
    run_ranks(world_size, train_both_ways, save_model(tmp_path / "source", llama_config()), strategy)


def wait_for_the_dead(rank, folder):
    region = _Region.open(dist.group.WORLD)
    if rank == 1:
        os._exit(0)
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="rank 1 of the group has died"):
        region.barrier()
    assert time.monotonic() - started < 30
    os._exit(0)


def test_a_dead_rank_ends_the_wait(tmp_path):
    run_ranks(2, wait_for_the_dead, tmp_path)


def without_room(rank):
    host_collectives._create = lambda world_size: None
    assert _Region.open(dist.group.WORLD) is None


def without_one_that_can_open(rank):
    if rank == 1:
        host_collectives._map = lambda path, pids: None
    assert _Region.open(dist.group.WORLD) is None


def test_all_do_without_when_one_cannot():
    run_ranks(2, without_room)
    run_ranks(3, without_one_that_can_open)
