"""AdamW, its learning rate, and gradient clipping."""

import math

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from training.config import TrainingConfig
from training.small_adamw import SmallAdamW


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """AdamW over all trainable parameters; only matrices are decayed."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas = (config.adam_beta1, config.adam_beta2)
    if config.optimizer_state == "fp32":
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.adam_eps, fused=True)
    return SmallAdamW(
        groups,
        config.optimizer_state,
        lr=config.learning_rate,
        betas=betas,
        eps=config.adam_eps,
        seed=config.seed,
    )


def learning_rate(step: int, num_steps: int, config: TrainingConfig) -> float:
    """Learning rate of a step, as a pure function, so that a resumed run needs no state for it.

    Args:
        step: Counted from 0.
        num_steps: Steps in the whole run.
        config: Peak, schedule, warm-up and floor.
    """
    warmup = math.ceil(config.warmup_ratio * num_steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    if config.schedule == "constant":
        return config.learning_rate
    # 0 at the end of the warm-up, 1 at the last step.
    progress = (step - warmup) / max(1, num_steps - 1 - warmup)
    shape = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.learning_rate * (config.min_lr_ratio + (1 - config.min_lr_ratio) * shape)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate` for the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_gradients(model: nn.Module, max_norm: float | None) -> torch.Tensor:
    """Scale gradients down to `max_norm` if their global L2 norm is above it.

    Args:
        model: Whose gradients; sharded ones are measured over all ranks.
        max_norm: None: measure only.

    Returns:
        The norm before clipping, a scalar on the device.
    """
    parameters = [p for p in model.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if max_norm is not None:
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
