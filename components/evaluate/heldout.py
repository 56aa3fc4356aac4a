"""Held-out loss of a causal language model over packed samples."""

from collections.abc import Callable
from typing import Any

import torch

from training.data import PackedDataset, collate, num_supervised
from training.errors import UserError
from training.head import SummedLoss


@torch.inference_mode()
def heldout_loss(
    model: Any,
    samples: PackedDataset,
    device: torch.device,
    on_sample: Callable[[int], None] = lambda num_done: None,
) -> tuple[float, int]:
    """Mean cross-entropy over the supervised positions, by the same code that training minimises it with.

    Args:
        model: A transformers causal language model on `device`.
        samples: What to predict; one is read and computed at a time.
        device: Where the model is.
        on_sample: Called after each sample with the number of samples done.

    Returns:
        The loss in nats per supervised token, and the number of those.

    Raises:
        UserError: No position is supervised.
    """
    # Summed in Python's doubles: over many samples, fp32 would lose the last digits.
    total, num_tokens = 0.0, 0
    summed_loss = SummedLoss(model)
    for index in range(len(samples)):
        sample = samples[index]
        if supervised := num_supervised([sample]):
            total += summed_loss(collate([sample], device)).item()
            num_tokens += supervised
        on_sample(index + 1)
    if not num_tokens:
        raise UserError(
            f"none of the {len(samples)} held-out samples has a token to predict: check data.heldout and "
            "data.heldout_fraction, and that data.sequence_length is long enough to reach the answers"
        )
    return total / num_tokens, num_tokens
