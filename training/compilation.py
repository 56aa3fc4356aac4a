"""torch.compile, layer by layer."""

import shutil

import torch
from transformers import PreTrainedModel

from training.errors import UserError
from training.sharding import decoder_layers


def compile_layers(model: PreTrainedModel, device: torch.device) -> None:
    """Compile every decoder layer in place; equal layers share their code.

    Layer by layer, because FSDP gathers parameters between layers, where a graph could not reach, and because
    one layer compiles in a fraction of a whole model's time.

    Args:
        model: After activation checkpointing, before it is sharded.
        device: Where it computes.

    Raises:
        UserError: There is no C++ compiler, which code for a CPU needs.
    """
    if device.type == "cpu" and not any(shutil.which(name) for name in ("g++", "clang++")):
        raise UserError(
            "training.compile is true, but this machine has no C++ compiler: install one (Debian: apt-get install "
            "g++), or set training.compile to false"
        )
    for _, layer in decoder_layers(model):
        layer.compile()
