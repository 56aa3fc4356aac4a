"""What a rank computes in a step."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from training.config import TrainingConfig
from training.data import (
    Batch,
    GlobalOrder,
    PackedDataset,
    collate,
    num_supervised,
    num_tokens,
    rank_samples,
    squared_lengths,
)


@dataclass(frozen=True)
class StepInput:
    """A rank's part of a step.

    Attributes:
        batches: Its micro-batches, as many as every other rank's.
        supervised: Tokens that the loss is taken over.
        tokens: Tokens, padding excluded.
        positions: Positions to compute.
        squared_lengths: Sum of the squares of documents' lengths.
    """

    batches: list[Batch]
    supervised: int
    tokens: int
    positions: int
    squared_lengths: int


def load_step(
    dataset: PackedDataset,
    order: GlobalOrder,
    step: int,
    config: TrainingConfig,
    total_samples: int,
    device: torch.device,
) -> StepInput:
    """This rank's part of a step, on the device.

    Args:
        dataset: The samples.
        order: The run's order.
        step: Counted from 0.
        config: Sizes of batches.
        total_samples: Samples in the whole run.
        device: Where this rank computes.
    """
    samples = rank_samples(
        dataset,
        order,
        step,
        global_batch_size=config.global_batch_size,
        total_samples=total_samples,
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
    )
    micro = config.micro_batch_size
    batches = [collate(samples[i : i + micro], device) for i in range(0, len(samples), micro)]
    return StepInput(
        batches=batches,
        supervised=num_supervised(samples),
        tokens=num_tokens(samples),
        positions=sum(batch.input_ids.numel() for batch in batches),
        squared_lengths=squared_lengths(samples),
    )
