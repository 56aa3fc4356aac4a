"""Memory of a rank against the closed forms: its share of the state, and what is kept for the backward pass."""

import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tests.runs import as_sample, llama_config, packed_rows, run_ranks, save_model
from training.activation import checkpoint_activations
from training.build import build_model
from training.config import RunConfig
from training.data import collate
from training.head import SummedLoss
from training.model import build_on_meta, load_weights, materialize, num_parameters
from training.optim import make_optimizer

CPU = torch.device("cpu")

# fp32 weight, gradient, two moments; of matrices, the moments in 2 bytes each, or in 1, and 4 for a row's block.
BYTES = {"fp32": 16, "bf16": 12, "8bit": 10 + 2 * 4 / 32}


def local_bytes(tensor):
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()


def measure(rank, source, strategy, kind, shards):
    config = RunConfig.model_validate(
        {
            "model": {"name": "org/tiny"},
            "data": {"train": "org/data"},
            "parallel": {"strategy": strategy, "shard_group_size": shards if "HYBRID" in strategy else None},
            "training": {"optimizer_state": kind},
        }
    )
    model = build_model(config, source, CPU, torch.float32)
    load_weights(model, source)
    optimizer = make_optimizer(model, config.training)
    SummedLoss(model)(collate([as_sample(packed_rows(1)[0])], CPU)).backward()
    optimizer.step()
    state = [value for values in optimizer.state.values() for key, value in values.items() if key != "step"]
    parameters = list(model.parameters())
    found = sum(local_bytes(t) for t in [*parameters, *(p.grad for p in parameters), *state])
    # All matrices of this model have rows of 32 or 64: one block each. Moments of norms stay in fp32.
    rows_of_64 = sum(p.shape[0] for p in parameters if p.ndim == 2 and p.shape[1] == 64)
    vectors = sum(p.numel() for p in parameters if p.ndim == 1)
    whole = num_parameters(model)
    expected = (whole - vectors) * BYTES[kind] + vectors * 16
    if kind == "8bit":
        expected -= rows_of_64 * 2 * 4  # half as many scales for them
    total = torch.tensor(float(found), dtype=torch.float64)
    dist.all_reduce(total)
    assert total.item() == pytest.approx(expected * dist.get_world_size() / shards, rel=1e-9)
    assert found == pytest.approx(expected / shards, rel=0.1)  # 32 rows over 3 ranks


@pytest.mark.parametrize(
    ("world_size", "strategy", "shards"),
    [(2, "FULL_SHARD", 2), (3, "SHARD_GRAD_OP", 3), (4, "HYBRID_SHARD", 2), (2, "NO_SHARD", 1)],
)
def test_state_is_divided_by_the_shards_only(world_size, strategy, shards, tmp_path):
    source = save_model(tmp_path / "source", llama_config(tie_word_embeddings=True))
    for kind in BYTES if strategy == "FULL_SHARD" else ["fp32"]:
        run_ranks(world_size, measure, source, strategy, kind, shards)


def kept_bytes(source, mode):
    """Bytes that autograd keeps from the forward pass, each storage once, parameters left out."""
    model = build_on_meta(source, "documents", torch.float32)
    checkpoint_activations(model, mode)
    materialize(model, CPU)
    load_weights(model, source)
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = collate([as_sample(packed_rows(1)[0])], CPU)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = SummedLoss(model)(batch)
    assert loss.requires_grad
    return sum(kept.values()), batch.input_ids.numel()


def test_full_checkpointing_keeps_one_hidden_state_a_layer(tmp_path):
    found = {}
    for num_layers in (2, 6):
        source = save_model(tmp_path / str(num_layers), llama_config(num_hidden_layers=num_layers))
        for mode in ("none", "selective", "full"):
            found[mode, num_layers], tokens = kept_bytes(source, mode)
    per_layer = {mode: (found[mode, 6] - found[mode, 2]) / 4 for mode in ("none", "selective", "full")}
    assert per_layer["full"] == tokens * 32 * 4
    assert per_layer["none"] > 8 * per_layer["full"]


def test_memory_is_given_back_at_once_where_it_is_short(monkeypatch):
    from training.node import _tune_for_cpu

    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "OMP_NUM_THREADS", "THP_MEM_ALLOC_ENABLE"):
        monkeypatch.delenv(name, raising=False)
    _tune_for_cpu(2, memory_is_short=False)
    assert "MALLOC_MMAP_THRESHOLD_" not in os.environ
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "7")
    _tune_for_cpu(2, memory_is_short=True)
    assert os.environ["MALLOC_MMAP_THRESHOLD_"] == "262144"
    assert os.environ["MALLOC_TRIM_THRESHOLD_"] == "7", "what is set already stays"
