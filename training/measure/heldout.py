"""Held-out loss, document by document, taken by all ranks together."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from training.data import EMPTY_SAMPLE, IGNORE, PackedDataset, PackedSample, collate
from training.errors import UserError
from training.head import SummedLoss
from training.measure.measured import Documents
from training.measure.sources import HeldoutSource


@torch.no_grad()
def document_losses(
    model: PreTrainedModel,
    samples: PackedDataset,
    sources: Sequence[HeldoutSource],
    device: torch.device,
    on_sample: Callable[[int], None] = lambda num_done: None,
) -> Documents:
    """Cross-entropy of every held-out document, by the same code that training minimises it with. Collective.

    Samples are dealt out to the ranks. Every rank makes the same number of forward passes, the last ones perhaps
    over an empty sample: with sharded parameters a pass is collective.

    Args:
        model: Whole on every rank, or sharded over all.
        samples: What to predict, the same on every rank.
        sources: Of the samples, in their order.
        device: Where this rank computes.
        on_sample: Called after each pass with the number of samples done by all ranks.

    Returns:
        The documents with something to predict, on every rank.

    Raises:
        UserError: There is none.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    num_documents = np.array([len(samples[i].lengths) for i in range(len(samples))], dtype=np.int64)
    first_document = np.concatenate([[0], np.cumsum(num_documents)])
    nats = torch.zeros(int(first_document[-1]), dtype=torch.float64)
    counts = torch.zeros(int(first_document[-1]), dtype=torch.int64)
    loss = SummedLoss(model)
    for first in range(0, len(samples), world_size):
        index = first + rank
        sample = samples[index] if index < len(samples) else EMPTY_SAMPLE
        of_tokens = loss.of_tokens(collate([sample], device)).double().cpu()
        if index < len(samples):
            document = torch.from_numpy(_document_of_tokens(sample) + first_document[index])
            nats.index_add_(0, document, of_tokens)
            counts.index_add_(0, document, torch.ones_like(document))
        on_sample(min(first + world_size, len(samples)))
    for total in (nats, counts):
        dist.all_reduce(total)
    source = np.repeat(np.repeat(np.arange(len(sources)), [s.num_samples for s in sources]), num_documents)
    is_supervised = counts.numpy() > 0
    if not is_supervised.any():
        raise UserError(
            f"none of the {len(samples)} held-out samples has a token to predict: check data.heldout and "
            "data.heldout_fraction, and that data.sequence_length is long enough to reach the answers"
        )
    return Documents(nats.numpy()[is_supervised], counts.numpy()[is_supervised], source[is_supervised])


def _document_of_tokens(sample: PackedSample) -> np.ndarray:
    """The document of each supervised token, counted in its sample; int64 [supervised]."""
    documents = np.repeat(np.arange(len(sample.lengths)), sample.lengths)
    return documents[sample.labels != IGNORE]
