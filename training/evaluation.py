"""The held-out loss, taken by all ranks together while they train."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from training.data import EMPTY_SAMPLE, PackedDataset, collate, num_supervised
from training.device import exact_dtype
from training.errors import UserError
from training.head import SummedLoss


@torch.no_grad()
def heldout_loss(
    model: PreTrainedModel,
    loss: SummedLoss,
    samples: PackedDataset,
    device: torch.device,
    *,
    micro_batch_size: int,
    max_samples: int | None = None,
    before_pass: Callable[[], None] = lambda: None,
) -> tuple[float, int]:
    """Mean cross-entropy over the supervised positions of held-out samples. Collective.

    Every rank makes the same number of forward passes, whatever the number of samples: a rank whose share is
    shorter fills it up with empty samples. With sharded parameters a pass is collective, and an uneven number
    would hang.

    Args:
        model: The sharded model.
        loss: Its loss.
        samples: All held-out samples, the same on every rank.
        device: Where this rank computes.
        micro_batch_size: Samples in a forward pass on one rank.
        max_samples: Take the first of them only. None: all.
        before_pass: Called before each forward pass; it may raise, if it does so on all ranks.

    Returns:
        The loss in nats per supervised token, and the number of those.

    Raises:
        UserError: No position is supervised.
    """
    count = min(len(samples), max_samples or len(samples))
    per_pass = dist.get_world_size() * micro_batch_size
    was_training = model.training
    model.eval()
    total = torch.zeros(2, dtype=exact_dtype(device), device=device)
    for first in range(0, count, per_pass):
        before_pass()
        places = range(first + dist.get_rank() * micro_batch_size, first + per_pass)[:micro_batch_size]
        mine = [samples[place] if place < count else EMPTY_SAMPLE for place in places]
        total[0] += loss(collate(mine, device))
        total[1] += num_supervised(mine)
    model.train(was_training)
    dist.all_reduce(total)
    nats, supervised = total.tolist()
    if not supervised:
        raise UserError(
            f"none of the {count} held-out samples has a token to predict: check data.heldout and "
            "data.heldout_fraction, or raise evaluation.max_samples"
        )
    return nats / supervised, int(supervised)
