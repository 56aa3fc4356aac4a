"""A run's model on a rank, each technique applied in the order that they need."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from training.activation import checkpoint_activations
from training.compilation import compile_layers
from training.config import RunConfig
from training.errors import UserError
from training.float8 import swap_linears
from training.host_collectives import use_shared_memory
from training.lora import add_adapters
from training.model import build_on_meta, materialize
from training.precision import master_dtype
from training.sharding import make_mesh, shard_model


def build_model(
    config: RunConfig, source: Path, device: torch.device, compute: torch.dtype, num_rows: int | None = None
) -> PreTrainedModel:
    """The sharded model, with memory for this rank's shards and no values yet. Collective.

    Args:
        config: The run.
        source: The published model folder.
        device: Where this rank computes.
        compute: Dtype of forward and backward passes.
        num_rows: Rows of the embedding. None: as the folder says.

    Raises:
        UserError: What the config asks for does not fit the model, the ranks or the device.
    """
    training, parallel = config.training, config.parallel
    if parallel.cpu_offload and device.type == "cpu":
        raise UserError(
            "parallel.cpu_offload is true, but this machine has no accelerator to offload from: set it to false"
        )
    uses_lora = training.method == "lora"
    master = master_dtype(compute)
    # Frozen weights need no masters: they are kept as they are computed with.
    model = build_on_meta(source, config.model.attention, compute if uses_lora else master, num_rows)
    # Before adapters are put beside them: those are too small for float8 to gain anything.
    if training.float8 != "none":
        swap_linears(model, training.float8, device)
    if uses_lora:
        add_adapters(model, config.lora, master)
    checkpoint_activations(model, training.activation_checkpointing)
    if training.compile:
        compile_layers(model, device)
    mesh = make_mesh(parallel, device, dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"]))
    shard_model(model, mesh, parallel.strategy, compute, cpu_offload=parallel.cpu_offload)
    materialize(model, device, cpu_offload=parallel.cpu_offload)
    if device.type == "cpu" and mesh["shard"].size() > 1:
        use_shared_memory(model, mesh["shard"].get_group())
    return model
