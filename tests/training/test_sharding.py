"""Strategies: the collectives of each, counted and weighed, and the plan of modules that are gathered together."""

import os

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.collectives import CountCollectives
from tests.runs import as_sample, llama_config, packed_rows, run_ranks, save_model
from training import build
from training.build import build_model
from training.config import ParallelConfig, RunConfig
from training.data import collate
from training.errors import UserError
from training.head import SummedLoss
from training.model import load_weights, num_parameters
from training.sharding import make_mesh, sharding_units

CPU = torch.device("cpu")


def config_of(strategy, group=None, **training):
    return RunConfig.model_validate(
        {
            "model": {"name": "org/tiny"},
            "data": {"train": "org/data"},
            "parallel": {"strategy": strategy, "shard_group_size": group},
            "training": {"global_batch_size": 12, **training},
        }
    )


def count(rank, folder, strategy, group, precision, expected):
    compute = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    build.use_shared_memory = lambda model, group: False
    model = build_model(config_of(strategy, group), folder, CPU, compute)
    load_weights(model, folder)
    loss = SummedLoss(model)
    batch = collate([as_sample(packed_rows(1)[0])], CPU)
    for _ in range(2):
        with CountCollectives() as seen:
            loss(batch).backward()
    found = tuple(seen.counts[kind] for kind in ("all_gather", "reduce_scatter", "all_reduce"))
    assert found == expected, seen.counts
    # Bytes, by the closed form: all parameters are gathered, those of layers twice where they are freed in
    # between; every gradient is reduced once, and once more over the replicas.
    world = torch.distributed.get_world_size()
    shards = {"FULL_SHARD": world, "SHARD_GRAD_OP": world, "HYBRID_SHARD": group, "NO_SHARD": 1}[strategy]
    whole = num_parameters(model)
    layers = sum(p.numel() for p in model.model.layers.parameters())
    gathered = whole + (layers if strategy in ("FULL_SHARD", "HYBRID_SHARD") else 0)
    by_kind = {
        "all_gather": gathered * compute.itemsize // shards if shards > 1 else 0,
        "reduce_scatter": whole * 4 if shards > 1 else 0,
        "all_reduce": whole * 4 // shards if shards < world else 0,
    }
    for kind, num_bytes in by_kind.items():
        # Up to padding: rows that the shards do not divide.
        assert num_bytes <= seen.num_bytes[kind] <= 1.05 * num_bytes, (kind, num_bytes, seen.num_bytes)


# Three layers, embedding, tail: 5 units. Between forward and backward the tail stays gathered, and the backward
# pass of the embedding does without.
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("world_size", "strategy", "group", "expected"),
    [
        (2, "FULL_SHARD", None, (8, 5, 0)),
        (2, "SHARD_GRAD_OP", None, (5, 5, 0)),
        (4, "HYBRID_SHARD", 2, (8, 5, 5)),
        (6, "HYBRID_SHARD", 3, (8, 5, 5)),
        (2, "NO_SHARD", None, (0, 0, 5)),
    ],
)
def test_collectives_of_a_strategy_and_their_bytes(world_size, strategy, group, expected, precision, tmp_path):
    folder = save_model(tmp_path / "source", llama_config())
    run_ranks(world_size, count, folder, strategy, group, precision, expected)


def test_hybrid_groups_default_to_a_node(monkeypatch):
    seen = []
    monkeypatch.setattr("training.sharding.init_device_mesh", lambda kind, shape, **kwargs: seen.append(shape))
    make_mesh(ParallelConfig(strategy="HYBRID_SHARD"), CPU, world_size=16, local_size=8)
    make_mesh(ParallelConfig(strategy="HYBRID_SHARD", shard_group_size=4), CPU, world_size=16, local_size=8)
    assert seen == [(2, 8), (4, 4)]


def test_a_group_that_does_not_divide_the_ranks_is_refused():
    with pytest.raises(UserError, match="cannot form groups of 8 out of 12 ranks"):
        make_mesh(ParallelConfig(strategy="HYBRID_SHARD"), CPU, world_size=12, local_size=8)


def test_tied_embeddings_are_one_unit_with_the_head():
    tied = AutoModelForCausalLM.from_config(llama_config(tie_word_embeddings=True))
    assert [len(modules) for modules, _ in sharding_units(tied)] == [1, 1, 1, 3]
    untied = AutoModelForCausalLM.from_config(llama_config(tie_word_embeddings=False))
    assert [len(modules) for modules, _ in sharding_units(untied)] == [1, 1, 1, 1, 2]


def offloaded(rank, folder):
    os.environ["LOCAL_WORLD_SIZE"] = "1"
    config = config_of("FULL_SHARD").model_copy(update={"parallel": ParallelConfig(cpu_offload=True)})
    with pytest.raises(UserError, match="no accelerator to offload from"):
        build_model(config, folder, CPU, torch.float32)


def test_offload_without_an_accelerator_is_refused(tmp_path):
    run_ranks(1, offloaded, save_model(tmp_path / "source", llama_config()))
