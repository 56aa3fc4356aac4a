"""What all sides train with, so that their loss curves are one curve."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hyperparameters:
    """AdamW at a constant rate, with the gradient's norm clipped."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    seed: int = 1
