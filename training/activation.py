"""Activation checkpointing: trade recomputation for memory."""

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from transformers import PreTrainedModel

from training.sharding import decoder_layers


def checkpoint_activations(model: PreTrainedModel, mode: str) -> None:
    """Apply `training.activation_checkpointing` to a model in place.

    Args:
        model: Before it is sharded.
        mode: `none`, or `full`: keep each decoder layer's input only.
    """
    if mode == "none":
        return
    layers = {id(layer) for _, layer in decoder_layers(model)}
    apply_activation_checkpointing(model, check_fn=lambda module: id(module) in layers)
