"""How all models of a run are measured."""

from dataclasses import dataclass

import torch

from training.config import RunConfig
from training.device import default_device
from training.precision import resolve_precision


@dataclass(frozen=True)
class Settings:
    """How all models of a run are measured.

    Attributes:
        device: Where this rank computes.
        dtype: Of weights and of what they compute.
        attention: `model.attention`.
        seed_of_weights: What the base model's new weights are drawn from; None: it has the published ones.
        resize_vocabulary: Whether the base model has an embedding for every token of the data.
    """

    device: torch.device
    dtype: torch.dtype
    attention: str
    seed_of_weights: int | None = None
    resize_vocabulary: bool = False

    @classmethod
    def of(cls, config: RunConfig) -> "Settings":
        """The settings of a run on this rank."""
        device = default_device()
        return cls(
            device=device,
            dtype=resolve_precision(config.training.precision, device),
            attention=config.model.attention,
            seed_of_weights=config.training.seed if config.model.init == "random" else None,
            resize_vocabulary=config.model.resize_vocabulary,
        )

    @property
    def precision(self) -> str:
        """The dtype's short name, for example `bfloat16`."""
        return str(self.dtype).removeprefix("torch.")
