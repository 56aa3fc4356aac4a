"""Activation checkpointing: trade recomputation for memory."""

import functools
from typing import Any

import torch
import torch.nn.attention.varlen  # which registers its operator
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers import PreTrainedModel

from training.sharding import decoder_layers

_PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}

_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.torch_attn._varlen_attn.default,
}


def checkpoint_activations(model: PreTrainedModel, mode: str) -> None:
    """Apply `training.activation_checkpointing` to a model in place.

    Args:
        model: Before it is compiled and sharded.
        mode: `none`; `full`: keep each decoder layer's input only; `selective`: keep the results of attention and
            of every second matrix product of a layer too, which cost the most to compute again.
    """
    if mode == "none":
        return
    layers = {id(layer) for _, layer in decoder_layers(model)}
    wrap = (
        functools.partial(checkpoint_wrapper, context_fn=_selective_contexts)
        if mode == "selective"
        else checkpoint_wrapper
    )
    apply_activation_checkpointing(model, wrap, check_fn=lambda module: id(module) in layers)


def _selective_contexts() -> tuple[Any, Any]:
    # Forward and recomputation each count for themselves, and have to come to the same answers.
    counts = {True: 0, False: 0}

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if op in _PRODUCTS:
            counts[context.is_recompute] += 1
            keep = counts[context.is_recompute] % 2 == 1
        else:
            keep = op in _ATTENTION
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    contexts: tuple[Any, Any] = create_selective_checkpoint_contexts(policy)
    return contexts
