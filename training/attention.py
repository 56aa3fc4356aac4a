"""Attention over packed documents, each computed alone.

transformers keeps packed documents apart with a mask over the whole sample, and computes what the mask then
throws away: for a sample of n equal documents all but 1/n of the work. Here each document is a call of its own,
which needs no mask. It is registered with transformers under the name `documents`, so model code is untouched.
"""

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM

from training.errors import UserError

NAME = "documents"


def choose_attention(requested: str, config: Any, device: torch.device) -> str | None:
    """The attention implementation to build a model with.

    Args:
        requested: `model.attention` of the run.
        config: The model's transformers config.
        device: Where it computes. On accelerators many small calls would wait for their launches, so `auto`
            takes `documents` on a CPU only.

    Returns:
        A name that transformers knows; None for its own choice.
    """
    if requested != "auto":
        return requested
    kind = AutoModelForCausalLM._model_mapping[type(config)]
    # What sdpa cannot express (soft-capped scores, biases), calls of sdpa for each document cannot either.
    fits = kind._supports_sdpa and kind._supports_attention_backend
    return NAME if fits and device.type == "cpu" else None


def check_isolation(model: nn.Module, device: torch.device) -> None:
    """Make sure that packed documents cannot see each other in this model, by trying it. Collective.

    Some architectures build a mask of ones when they are given none, which joins what is packed together; no
    flag of theirs tells. So the first of two documents is changed, and the second must not notice.

    Args:
        model: Sharded and loaded; two tiny forward passes are made.
        device: Where it computes.

    Raises:
        UserError: They can.
    """
    length = 8
    tokens = torch.arange(1, 2 * length + 1, device=device)[None]
    changed = torch.cat([tokens[:, :length].flip(1), tokens[:, length:]], dim=1)
    second = torch.arange(length, 2 * length, device=device)
    with torch.no_grad():
        before, after = (
            model(
                input_ids=ids,
                position_ids=torch.arange(length, device=device).repeat(2)[None],
                document_lengths=[[length, length]],
                logits_to_keep=second,
                use_cache=False,
            ).logits.float()
            for ids in (tokens, changed)
        )
    if (before - after).abs().max() > 1e-5 * before.abs().max():
        used = model.config._attn_implementation
        raise UserError(
            f"model.attention '{used}' lets packed documents see each other in {type(model).__name__}: set "
            "model.attention to documents"
        )


def document_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    document_lengths: list[list[int]] | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each document.

    Args:
        module: The attention layer.
        query: [samples, heads, tokens, head size].
        key: [samples, key-value heads, tokens, head size].
        value: As `key`.
        attention_mask: None; documents take its place.
        dropout: Of the attention weights.
        scaling: Of the scores; None is 1/sqrt(head size).
        sliding_window: How far a token sees back; None is the whole document.
        document_lengths: For each sample, tokens of its documents; they sum to `tokens`.
        kwargs: What other implementations need.

    Returns:
        [samples, tokens, heads, value head size], and no attention weights.

    Raises:
        UserError: The architecture keeps the lengths from its attention layers.
    """
    if document_lengths is None:
        raise UserError(
            f"{type(module).__name__} is not told where documents end, so model.attention 'documents' cannot be "
            "used with this model: set model.attention to sdpa"
        )
    assert attention_mask is None, "documents take the mask's place"
    if kwargs.get("softcap") is not None or kwargs.get("position_bias") is not None:
        raise ValueError(f"{type(module).__name__} needs a form of attention that 'documents' lacks: use eager")
    output = value.new_empty(*query.shape[:3], value.shape[-1])
    for sample, lengths in enumerate(document_lengths):
        parts = zip(*(tensor[sample].split(lengths, dim=1) for tensor in (query, key, value)), strict=True)
        documents = [
            nn.functional.scaled_dot_product_attention(
                q[None],
                k[None],
                v[None],
                attn_mask=_window_mask(q.shape[1], sliding_window, q.device),
                is_causal=not _is_windowed(q.shape[1], sliding_window),
                dropout_p=dropout,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
            for q, k, v in parts
        ]
        output[sample] = torch.cat(documents, dim=2)[0]
    return output.transpose(1, 2).contiguous(), None


def _is_windowed(length: int, window: int | None) -> bool:
    return window is not None and length > window


def _window_mask(length: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    if window is None or not _is_windowed(length, window):
        return None
    position = torch.arange(length, device=device)
    distance = position[:, None] - position[None, :]
    return (distance >= 0) & (distance < window)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    return None


AttentionInterface.register(NAME, document_attention)
AttentionMaskInterface.register(NAME, _no_mask)
