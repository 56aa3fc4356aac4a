"""How both models are measured, and the name of a result under it."""

from dataclasses import dataclass

import torch

from training.config import RunConfig
from training.device import default_device
from training.precision import resolve_precision
from training.store import fingerprint

_VERSION = 2
"""Part of every result's fingerprint: raise it when the way of measuring changes."""


@dataclass(frozen=True)
class Settings:
    """How both models are measured.

    Attributes:
        device: Where they compute.
        dtype: Of their weights and of what they compute.
        attention: `model.attention`.
        num_generations: Prompts that they answer.
        max_new_tokens: Longest answer, in tokens.
        seed_of_weights: What the base model's new weights are drawn from; None: it has the published ones.
        resize_vocabulary: Whether the base model has an embedding for every token of the data.
    """

    device: torch.device
    dtype: torch.dtype
    attention: str
    num_generations: int
    max_new_tokens: int
    seed_of_weights: int | None = None
    resize_vocabulary: bool = False

    @classmethod
    def of(cls, config: RunConfig) -> "Settings":
        """The settings of a run on this machine."""
        device = default_device()
        return cls(
            device=device,
            dtype=resolve_precision(config.training.precision, device),
            attention=config.model.attention,
            num_generations=config.evaluation.num_generations,
            max_new_tokens=config.evaluation.max_new_tokens,
            seed_of_weights=config.training.seed if config.model.init == "random" else None,
            resize_vocabulary=config.model.resize_vocabulary,
        )

    @property
    def base_is_as_published(self) -> bool:
        """Whether training starts from the published weights, and nothing else."""
        return self.seed_of_weights is None and not self.resize_vocabulary

    @property
    def precision(self) -> str:
        """The dtype's short name, for example `bfloat16`."""
        return str(self.dtype).removeprefix("torch.")

    def fingerprint(self, model: str, dataset: str) -> str:
        """Name the result of a model on a data set, both given by fingerprint."""
        # Not the device: it changes the last digits only, and one result should serve all machines.
        return fingerprint(
            model=model,
            dataset=dataset,
            precision=self.precision,
            attention=self.attention,
            num_generations=self.num_generations,
            max_new_tokens=self.max_new_tokens,
            seed_of_weights=self.seed_of_weights,
            resize_vocabulary=self.resize_vocabulary,
            version=_VERSION,
        )
