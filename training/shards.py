"""This rank's part of a parameter."""

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor, sharded or whole; it shares the tensor's memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_rows(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The rows of a tensor that this rank holds, which share its memory, and the number of the first.

    Args:
        tensor: Sharded by its first dimension, as FSDP2 does, or whole.
    """
    if not isinstance(tensor, DTensor):
        return tensor, 0
    assert all(not placement.is_shard() or placement == Shard(0) for placement in tensor.placements)
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local(), offset[0] if offset else 0


def sum_over_shards(value: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Sum a value over the ranks that hold the rows of `tensor`, each row once. Collective."""
    if not isinstance(tensor, DTensor):
        return value
    mesh = tensor.device_mesh
    # Parameters that are offloaded lie in host memory, which the device's collectives cannot reach.
    total = value.to(mesh.device_type)
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_shard():
            dist.all_reduce(total, group=mesh.get_group(dimension))
    return total.to(value.device)
