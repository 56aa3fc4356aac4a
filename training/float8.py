"""Matrix products in float8, through torchao, on GPUs that have them.

torchao is imported where it is used: transformers imports it wherever it is installed, which takes seconds, so it
is an extra of its own.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from training.errors import UserError
from training.sharding import decoder_layers

_MULTIPLE = 16
"""What both sizes of a matrix have to divide by for the GPU's float8 products."""


def swap_linears(model: PreTrainedModel, scaling: str, device: torch.device) -> None:
    """Make the decoder layers' linear modules compute in float8, in place. The head stays as it is.

    Args:
        model: On the meta device, before it is compiled and sharded.
        scaling: `training.float8`: `tensorwise` or `rowwise`.
        device: Where it computes.

    Raises:
        UserError: The device has no float8 matrix products, or torchao is missing.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"a {device.type} device"
        raise UserError(
            f"training.float8 is {scaling}, but {name} has no float8 matrix products: set it to none, or use GPUs "
            "of compute capability 8.9 (L4, L40S, H100) or above"
        )
    if find_spec("torchao") is None:
        raise UserError(
            f"training.float8 is {scaling}, but torchao is not installed: install shardline[float8], or set "
            "training.float8 to none"
        )
    from torchao.float8 import Float8LinearConfig

    convert(model, Float8LinearConfig.from_recipe_name(scaling))


def convert(model: PreTrainedModel, config: Any) -> None:
    """Swap every linear module of the decoder layers whose sizes fit; `config` is torchao's Float8LinearConfig."""
    from torchao.float8 import convert_to_float8_training

    layers = tuple(f"{name}." for name, _ in decoder_layers(model))

    def fits(module: nn.Module, name: str) -> bool:
        if not isinstance(module, nn.Linear) or not name.startswith(layers):
            return False
        return module.in_features % _MULTIPLE == 0 and module.out_features % _MULTIPLE == 0

    convert_to_float8_training(model, config=config, module_filter_fn=fits)
