"""The training state: what a checkpoint holds, and its copy in host memory."""

from typing import Any

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from transformers import PreTrainedModel

from training.model import trainable_weights


def training_state(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What a checkpoint holds: the trained weights and the optimizer's state. Frozen weights are in the store."""
    return {"model": trainable_weights(model), "optimizer": get_optimizer_state_dict(model, optimizer)}


class HostCopy:
    """Copies a state to host memory, which stays until it is closed."""

    def __init__(self) -> None:
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=torch.cuda.is_available(),
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=torch.accelerator.is_available(),
            )
        )

    def of(self, state: dict[str, Any]) -> dict[str, Any]:
        """The copy of a state; when this returns, the state may be changed."""
        copy = self._stager.stage(state)
        assert isinstance(copy, dict)
        return copy

    def close(self) -> None:
        """Give the memory back."""
        self._stager.close()
