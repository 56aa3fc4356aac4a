"""The training loop."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from training import optim
from training.config import RunConfig
from training.data import (
    GlobalOrder,
    PackedDataset,
    PackedSample,
    collate,
    num_supervised,
    num_tokens,
    rank_samples,
)
from training.device import peak_memory_bytes
from training.errors import UserError
from training.events import TrainStep
from training.head import summed_loss


@dataclass(frozen=True)
class Plan:
    """How long a run is.

    Attributes:
        num_steps: Optimizer steps.
        total_samples: Packed samples over all steps; the last step may be short.
    """

    num_steps: int
    total_samples: int


def make_plan(config: RunConfig, num_samples: int) -> Plan:
    """Number of steps and samples of a run over a data set of `num_samples` packed samples."""
    batch = config.training.global_batch_size
    if config.training.max_steps is not None:
        return Plan(config.training.max_steps, config.training.max_steps * batch)
    total = max(1, round(num_samples * config.training.epochs))
    return Plan(math.ceil(total / batch), total)


class Trainer:
    """Steps a sharded model over a data set.

    Args:
        config: The run.
        model: Sharded and loaded.
        optimizer: Of its parameters.
        dataset: The training samples.
        device: Where this rank computes.

    Attributes:
        step: Steps done; set it after loading a checkpoint.
        plan: How far to go.
    """

    def __init__(
        self,
        config: RunConfig,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        dataset: PackedDataset,
        device: torch.device,
    ) -> None:
        self.config = config
        self.model = model
        self.optimizer = optimizer
        self.dataset = dataset
        self.device = device
        self.plan = make_plan(config, len(dataset))
        self.step = 0
        self._order = GlobalOrder(len(dataset), config.training.seed)

    def run(
        self,
        *,
        on_step: Callable[[TrainStep], None],
        save: Callable[[int], None],
        stop_asked: Callable[[], bool],
    ) -> bool:
        """Train to the end of the plan, or until any rank is asked to stop. Collective.

        Args:
            on_step: Called on every rank after each step.
            save: Saves a checkpoint; called on all ranks at the same steps.
            stop_asked: Whether this rank was asked to stop.

        Returns:
            Whether the plan was finished.
        """
        while self.step < self.plan.num_steps:
            metrics, stop = self._train_step(stop_asked())
            on_step(metrics)
            if stop and self.step < self.plan.num_steps:
                save(self.step)
                return False
            if self.step % self.config.checkpoint.every_steps == 0 or self.step == self.plan.num_steps:
                save(self.step)
        return True

    def _train_step(self, stop_asked: bool) -> tuple[TrainStep, bool]:
        started = time.monotonic()
        training = self.config.training
        samples = self._samples()
        # One small collective before the step: the divisor of the loss has to be known before the first backward.
        supervised, tokens, stop = self._sum(num_supervised(samples), num_tokens(samples), stop_asked)
        if not supervised:
            raise UserError(
                f"no token of the {training.global_batch_size} samples of step {self.step + 1} is supervised: "
                "raise training.global_batch_size, or look at the data"
            )
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        micro = training.micro_batch_size
        for first in range(0, len(samples), micro):
            batch = collate(samples[first : first + micro], self.device)
            part = summed_loss(self.model, batch) / supervised
            part.backward()
            loss += part.detach()
        norm = optim.clip_gradients(self.model, training.max_grad_norm)
        dist.all_reduce(loss)
        if not math.isfinite(loss.item()) or not math.isfinite(norm.item()):
            raise UserError(
                f"the loss of step {self.step + 1} is {loss.item()} and the gradient norm {norm.item()}: lower "
                "training.learning_rate, or raise training.warmup_ratio"
            )
        rate = optim.learning_rate(self.step, self.plan.num_steps, training)
        optim.set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        memory = torch.tensor(float(peak_memory_bytes(self.device)), device=self.device)
        dist.all_reduce(memory, op=dist.ReduceOp.MAX)
        metrics = TrainStep(
            step=self.step,
            num_steps=self.plan.num_steps,
            loss=loss.item(),
            grad_norm=norm.item(),
            learning_rate=rate,
            num_tokens=tokens,
            num_supervised=supervised,
            seconds=time.monotonic() - started,
            memory_gib=memory.item() / 2**30,
        )
        return metrics, bool(stop)

    def _samples(self) -> list[PackedSample]:
        return rank_samples(
            self.dataset,
            self._order,
            self.step,
            global_batch_size=self.config.training.global_batch_size,
            total_samples=self.plan.total_samples,
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
        )

    def _sum(self, *values: int) -> list[int]:
        total = torch.tensor(values, dtype=torch.int64, device=self.device)
        dist.all_reduce(total)
        return [int(value) for value in total.tolist()]
