"""The loss: summed cross-entropy, with logits only where there is a label."""

import torch
from torch import nn

from training.data import IGNORE, Batch


def summed_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross-entropy of a micro-batch in nats, summed over its supervised positions.

    It is a sum, because only the caller knows how many supervised tokens the whole step has.

    Args:
        model: A transformers causal language model.
        batch: The micro-batch; without labels the loss is 0 and all gradients are 0.

    Returns:
        A scalar in fp32 (fp64 for an fp64 model).
    """
    # In most samples prompts are the greater part, and logits cost memory and time per position.
    positions = (batch.labels != IGNORE).any(dim=0).nonzero().squeeze(-1)
    # No attention mask: with one, even of ones, transformers would let packed documents see each other.
    logits = model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        document_lengths=batch.document_lengths,
        logits_to_keep=positions,
        use_cache=False,
    ).logits
    exact = logits if logits.dtype == torch.float64 else logits.float()
    return nn.functional.cross_entropy(
        exact.flatten(0, 1), batch.labels[:, positions].flatten(), ignore_index=IGNORE, reduction="sum"
    )
