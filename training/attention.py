"""Attention over packed documents, each computed alone.

transformers keeps packed documents apart with a mask over the whole sample, and computes what the mask then
throws away: for a sample of n equal documents all but 1/n of the work. Here documents need no mask: on CUDA one
variable-length kernel takes them all, elsewhere each is a call of its own. It is registered with transformers
under the name `documents`, so model code is untouched.
"""

import itertools
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM

from training.errors import UserError

NAME = "documents"


def choose_attention(requested: str, config: Any) -> str | None:
    """The attention implementation to build a model with.

    Args:
        requested: `model.attention` of the run.
        config: The model's transformers config.

    Returns:
        A name that transformers knows; None for its own choice.

    Raises:
        UserError: It needs a package that is not installed.
    """
    if requested == "flash_attention_2" and find_spec("flash_attn") is None:
        raise UserError(
            "model.attention is flash_attention_2, but the package flash-attn is not installed: install it, or "
            "set model.attention to documents, whose kernel on GPUs comes with PyTorch"
        )
    if requested != "auto":
        return requested
    kind = AutoModelForCausalLM._model_mapping[type(config)]
    # What sdpa cannot express (soft-capped scores, biases), calls of sdpa for each document cannot either. Chunks
    # that tokens do not see beyond are in the mask alone, which documents do without.
    text = config.get_text_config()
    chunked = getattr(text, "attention_chunk_size", None) or "chunked_attention" in (
        getattr(text, "layer_types", None) or ()
    )
    fits = kind._supports_sdpa and kind._supports_attention_backend and not chunked
    return NAME if fits else None


def document_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
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
        sliding_window: How many tokens a token sees, itself included; None is the whole document.
        cu_seq_lens_q: int32 [documents + 1]; document bounds, counted through all samples.
        max_length_q: Tokens of the longest document.
        kwargs: What other implementations need.

    Returns:
        [samples, tokens, heads, value head size], and no attention weights.

    Raises:
        UserError: The architecture keeps the bounds from its attention layers.
    """
    if cu_seq_lens_q is None or max_length_q is None:
        raise UserError(
            f"{type(module).__name__} is not told where documents end, so model.attention 'documents' cannot be "
            "used with this model: set model.attention to sdpa"
        )
    if attention_mask is not None:
        raise UserError(
            f"{type(module).__name__} masks more than what is not its document, so model.attention 'documents' "
            "cannot be used with this model: set model.attention to sdpa"
        )
    if kwargs.get("softcap") is not None or kwargs.get("position_bias") is not None:
        raise ValueError(f"{type(module).__name__} needs a form of attention that 'documents' lacks: use eager")
    if _fits_varlen(query, value, dropout):
        output = _varlen(query, key, value, cu_seq_lens_q, max_length_q, scaling, sliding_window)
    else:
        output = _one_by_one(query, key, value, cu_seq_lens_q, dropout, scaling, sliding_window)
    return output, None


def _fits_varlen(query: torch.Tensor, value: torch.Tensor, dropout: float) -> bool:
    """Whether PyTorch's variable-length flash attention, which is for CUDA, computes this."""
    return (
        query.device.type == "cuda"
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] == value.shape[-1] <= 256
        and not dropout
    )


def _varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    longest: int,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    # It only has to be an upper bound, and a compiled layer is compiled again for each new number.
    longest = -(-longest // 512) * 512
    output = varlen_attn(
        *(tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value)),
        bounds,
        bounds,
        longest,
        longest,
        scale=scaling,
        # Tokens to the left that are seen; -1 is all of them. None to the right makes it causal.
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(output, torch.Tensor)
    return output.unflatten(0, (query.shape[0], query.shape[2]))


# The number of documents and their lengths differ from batch to batch, and for each a compiled layer would be
# compiled again.
@torch.compiler.disable
def _one_by_one(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    dropout: float,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    samples, tokens = query.shape[0], query.shape[2]
    edges = bounds.tolist()
    lengths = [end - start for start, end in itertools.pairwise(edges)]
    # Split and not sliced: each slice's gradient would be as large as all of them.
    parts = (tensor.transpose(0, 1).flatten(1, 2).split(lengths, dim=1) for tensor in (query, key, value))
    documents = []
    for q, k, v in zip(*parts, strict=True):
        mask = _window_mask(q.shape[1], window, query.device)
        document = nn.functional.scaled_dot_product_attention(
            q[None],
            k[None],
            v[None],
            attn_mask=mask,
            is_causal=mask is None,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        documents.append(document.transpose(1, 2)[0])
    return torch.cat(documents).unflatten(0, (samples, tokens))


def _window_mask(length: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    if window is None or length <= window:
        return None
    position = torch.arange(length, device=device)
    distance = position[:, None] - position[None, :]
    return (distance >= 0) & (distance < window)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    return None


AttentionInterface.register(NAME, document_attention)
AttentionMaskInterface.register(NAME, _no_mask)
