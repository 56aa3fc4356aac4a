"""How much a model has to compute for a batch: the numerator of MFU."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from training.sharding import decoder_layers

_WITHOUT_SCORES = {"linear_attention", "conv", "mlp", "moe"}
"""Types of layers that compute no scores between all pairs of tokens."""


@dataclass(frozen=True)
class ModelFlops:
    """Floating-point operations of forward and backward pass, a multiplication and an addition counted as two.

    The convention is that of PaLM (Chowdhery et al. 2022, appendix B) and torchtitan. It counts what the model
    needs, not what is done: nothing for recomputation, padding, or collectives. Of attention it counts the whole
    square of scores, although a causal kernel skips half of it and a sliding window more. It leaves out norms,
    activations, softmax, rotary embedding, the look-up of embeddings, and the state of linear attention, which
    are small. For a full fine-tuning it is 6 operations per weight and token: 2 forward, 2 for the gradient of
    the inputs and 2 for that of the weights, which frozen weights do without.

    Attributes:
        per_token: For the matrices of the decoder layers; of experts, for those that a token is sent to.
        per_supervised: For the head's matrix, which is applied at supervised positions only.
        per_squared_length: For the scores, and the values that they weigh, of all layers; times the square of
            each document's length.
    """

    per_token: float
    per_supervised: float
    per_squared_length: float

    @classmethod
    def of(cls, model: PreTrainedModel) -> "ModelFlops | None":
        """Count a model's operations from its shapes.

        Args:
            model: With its adapters, if it gets any; sharded or not, and with memory or without.

        Returns:
            None: the architecture does not tell how many experts a token is sent to, or its heads.
        """
        config = model.config.get_text_config()
        share = _active_share(config)
        per_squared_length = 0
        for number, layer_config in enumerate(config.per_layer_config):
            scores = _per_squared_length(layer_config)
            if scores is None:
                return None
            per_squared_length += scores if _has_scores(config, number) else 0
        per_token = 0.0
        for _, layer in decoder_layers(model):
            for name, weight in _matrices(layer):
                if "experts" in name.split("."):
                    if share is None:
                        return None
                    per_token += share * _per_weight(weight) * weight.numel()
                else:
                    per_token += _per_weight(weight) * weight.numel()
        head = model.get_output_embeddings()
        return cls(
            per_token=per_token,
            per_supervised=float(_per_weight(head.weight) * head.weight.numel()) if head is not None else 0.0,
            per_squared_length=float(per_squared_length),
        )

    def of_batch(self, num_tokens: int, num_supervised: int, squared_lengths: int) -> float:
        """Operations for a batch.

        Args:
            num_tokens: Tokens in it, padding excluded.
            num_supervised: Positions that the loss is taken over.
            squared_lengths: Sum of the squares of its documents' lengths, in tokens.
        """
        return (
            self.per_token * num_tokens
            + self.per_supervised * num_supervised
            + self.per_squared_length * squared_lengths
        )


def _matrices(layer: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """What tokens are multiplied with in a layer, by name: linear, Conv1D, routers, experts, adapters."""
    for owner, module in layer.named_modules():
        if isinstance(module, nn.Embedding):
            continue
        for name, weight in module.named_parameters(recurse=False):
            # Experts keep their biases in one tensor, which is no matrix.
            if weight.ndim >= 2 and not name.endswith("bias"):
                yield f"{owner}.{name}", weight


def _per_weight(weight: nn.Parameter) -> int:
    return 6 if weight.requires_grad else 4


def _active_share(config: Any) -> float | None:
    """Share of the experts that compute a token; None: the config has no word on it that is common."""
    active = _first(config, "num_experts_per_tok", "top_k_experts")
    among = _first(config, "num_local_experts", "num_experts")
    return active / among if active and among else None


def _per_squared_length(config: Any) -> int | None:
    """Of one layer that computes scores: 6 × heads × (size of a query + size of a value)."""
    heads = _first(config, "num_attention_heads")
    if heads is None:
        return None
    query = _first(config, "qk_head_dim", "head_dim") or config.hidden_size // heads
    return 6 * heads * (query + (_first(config, "v_head_dim") or query))


def _first(config: Any, *names: str) -> int | None:
    """The first of the fields that the config has, and that is not None."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def _has_scores(config: Any, layer: int) -> bool:
    types = getattr(config, "layer_types", None)
    return types is None or types[layer] not in _WITHOUT_SCORES
