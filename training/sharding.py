"""FSDP2: one strategy is one device mesh and one flag.

| strategy      | mesh (replicate, shard) | reshard after forward |
|---------------|-------------------------|-----------------------|
| FULL_SHARD    | (1, world)              | yes                   |
| SHARD_GRAD_OP | (1, world)              | no                    |
| HYBRID_SHARD  | (world / group, group)  | yes                   |
| NO_SHARD      | (world, 1)              | no                    |

The units come from the plan that transformers declares for each architecture, so no list of layer classes is
kept here.
"""

import functools
import re

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from transformers import PreTrainedModel

from training.config import ParallelConfig
from training.errors import UserError


def make_mesh(parallel: ParallelConfig, device: torch.device, world_size: int, local_size: int) -> DeviceMesh:
    """The device mesh of a strategy, with dimensions `replicate` and `shard`.

    Args:
        parallel: The run's parallel section.
        device: Kind of device that the ranks compute on.
        world_size: Ranks in all.
        local_size: Ranks on one node; HYBRID_SHARD's default group.

    Raises:
        UserError: The group does not divide the ranks.
    """
    shard = {"NO_SHARD": 1, "HYBRID_SHARD": parallel.shard_group_size or local_size}.get(
        parallel.strategy, world_size
    )
    if world_size % shard:
        raise UserError(
            f"HYBRID_SHARD cannot form groups of {shard} out of {world_size} ranks: set "
            "parallel.shard_group_size to a divisor"
        )
    return init_device_mesh(device.type, (world_size // shard, shard), mesh_dim_names=("replicate", "shard"))


def shard_model(
    model: PreTrainedModel, mesh: DeviceMesh, strategy: str, compute: torch.dtype, *, cpu_offload: bool = False
) -> None:
    """Apply FSDP2 to a model in place.

    Gradients are summed, not averaged: the loss is divided by the number of supervised tokens of the whole step
    before the backward pass, and averaging over ranks would weigh ranks with few tokens too high.

    Args:
        model: Usually on the meta device; what is trained has the master dtype, and what is frozen may have the
            compute dtype already.
        mesh: From `make_mesh`.
        strategy: `parallel.strategy`.
        compute: Dtype of the forward and backward passes.
        cpu_offload: Keep the shards in host memory; see `parallel.cpu_offload`.
    """
    reshard = strategy in ("FULL_SHARD", "HYBRID_SHARD")
    # A (1, N) mesh would still all-reduce over replicate groups of one rank.
    fsdp_mesh = mesh if mesh["replicate"].size() > 1 else mesh["shard"]
    parameter_dtype = next(p.dtype for p in model.parameters() if p.requires_grad)
    policy = MixedPrecisionPolicy()
    if compute != parameter_dtype:
        policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=parameter_dtype, cast_forward_inputs=False)
    shard = functools.partial(
        fully_shard,
        mesh=fsdp_mesh,
        mp_policy=policy,
        offload_policy=CPUOffloadPolicy() if cpu_offload else OffloadPolicy(),
    )
    for unit, keep in sharding_units(model):
        # The last unit's backward follows its forward at once: freeing it between would gather it twice.
        shard(unit, reshard_after_forward=reshard and not keep)
        if unit == [model.get_input_embeddings()]:
            # The gradient of a look-up needs the indices only.
            unit[0].set_unshard_in_backward(False)
    shard(model, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # Only NCCL can scale inside the reduction; a plain sum is right on every back end.
            module.set_force_sum_reduction_for_comms(True)


def sharding_units(model: PreTrainedModel) -> list[tuple[list[nn.Module], bool]]:
    """The groups of modules that are gathered together, each with whether it stays gathered after forward.

    Tied input and output embeddings are one parameter and have to be in one group.

    Raises:
        UserError: The architecture declares no plan that fits its modules.
    """
    base = model.base_model
    prefix = f"{model.base_model_prefix}." if base is not model else ""
    layers = [module for name, module in model.named_modules() if _is_layer(name, model)]
    if not layers:
        raise UserError(
            f"{type(model).__name__} declares no decoder layers to shard (looked below '{prefix}'): "
            "the architecture is not supported"
        )
    head = model.get_output_embeddings()
    embedding = model.get_input_embeddings()
    norm = _final_norm(model, layers)
    tied = head is not None and head.weight is embedding.weight
    tail = [module for module in (embedding if tied else None, norm, head) if module is not None]
    units: list[tuple[list[nn.Module], bool]] = [] if tied else [([embedding], False)]
    units += [([layer], False) for layer in layers]
    units.append((tail, True))
    return units


def decoder_layers(model: PreTrainedModel) -> list[tuple[str, nn.Module]]:
    """The model's decoder layers, by name, in order."""
    return [(name, module) for name, module in model.named_modules() if _is_layer(name, model)]


def _is_layer(name: str, model: PreTrainedModel) -> bool:
    # transformers' plan names layers 'model.layers.*'; older architectures call the list h or blocks.
    patterns = {key for key in (model._fsdp_plan or {}) if key.endswith(".*")}
    patterns |= {f"{model.base_model_prefix}.{key}" for key in ("h.*", "layers.*", "decoder.layers.*", "blocks.*")}
    return any(re.fullmatch(re.escape(p[:-1]) + r"\d+", name) for p in patterns)


def _final_norm(model: PreTrainedModel, layers: list[nn.Module]) -> nn.Module | None:
    """The norm between the last layer and the head: the norm that is no layer's own."""
    inside = {id(child) for layer in layers for child in layer.modules()}
    norms = [
        module
        for name, module in model.named_modules()
        if id(module) not in inside
        and "norm" in type(module).__name__.lower()
        and not any("embed" in part for part in name.split("."))
    ]
    return norms[-1] if norms else None
