"""The training loop."""

import contextlib
import gc
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from training import optim
from training.clock import PhaseClock
from training.config import RunConfig
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
from training.device import peak_memory_bytes, to_device, use_device
from training.errors import UserError
from training.evaluation import heldout_loss
from training.events import Evaluation, TrainStep
from training.flops import ModelFlops
from training.head import SummedLoss
from training.peaks import device_name, peak_tflops
from training.step_report import PendingReport, RankCounts, StepReport

_STEPS_BETWEEN_COLLECTIONS = 50
"""Python's garbage collector stops a rank when it likes, and with it all others at the next collective."""


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
        heldout: For `evaluation.every_steps`.
        device: Where this rank computes.
        compute: Dtype of forward and backward passes; it decides the peak that MFU is taken against.
        lag: Steps that the host may be ahead of what it has read from the device. Unset: one on accelerators,
            so that reading never holds them up; none on a CPU.

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
        heldout: PackedDataset | None,
        device: torch.device,
        compute: torch.dtype,
        lag: int | None = None,
    ) -> None:
        self.config = config
        self.model = model
        self.optimizer = optimizer
        self.dataset = dataset
        self.heldout = heldout
        self.device = device
        self.plan = make_plan(config, len(dataset))
        self.step = 0
        self._order = GlobalOrder(len(dataset), config.training.seed)
        self._loss = SummedLoss(model)
        self._flops = ModelFlops.of(model)
        precision = "float8" if config.training.float8 != "none" else str(compute).removeprefix("torch.")
        self._peak_tflops = peak_tflops(device_name(device), precision)
        self._lag = lag if lag is not None else int(device.type != "cpu")
        self._pending: deque[_PendingStep] = deque()
        self._read_at = 0.0
        self._before_update: Callable[[], None] = lambda: None
        # Seconds since the last report that were not spent on steps.
        self._held_up = {"checkpoint": 0.0, "evaluation": 0.0}

    def run(
        self,
        *,
        on_step: Callable[[TrainStep], None],
        on_evaluation: Callable[[Evaluation], None],
        save: Callable[[int, bool], None],
        before_update: Callable[[], None],
        stop_asked: Callable[[], bool],
    ) -> bool:
        """Train to the end of the plan, or until any rank is asked to stop. Collective.

        Args:
            on_step: Called on every rank with each step's metrics.
            on_evaluation: Called on every rank with each held-out loss.
            save: Saves a checkpoint of a step; called on all ranks at the same steps. The second argument says
                whether it is the last, so that there is nothing to go on with meanwhile.
            before_update: Called on every rank before weights and moments change; it may wait for a save that
                still reads them.
            stop_asked: Whether this rank was asked to stop.

        Returns:
            Whether the plan was finished.

        Raises:
            UserError: The loss is not finite, or a step has nothing to learn; the same on every rank, and before
                that step's state is saved.
        """
        self._read_at = time.monotonic()
        self._before_update = before_update
        with (
            ThreadPoolExecutor(1, "reader", use_device, (self.device,)) as reader,
            _rare_garbage_collection() as collect,
        ):
            batches = reader.submit(self._load, self.step)
            while self.step < self.plan.num_steps:
                ready, batches = batches, reader.submit(self._load, self.step + 1)
                self._pending.append(self._launch(ready, stop_asked()))
                self.step += 1
                collect(self.step)
                is_last = self.step == self.plan.num_steps
                saves = is_last or self.step % self.config.checkpoint.every_steps == 0
                evaluates = self._evaluates()
                stop = self._report(on_step, all_of_them=saves or evaluates)
                if evaluates and not stop:
                    with self._hold_up("evaluation"):
                        on_evaluation(self._evaluate())
                if stop and not is_last:
                    self._report(on_step, all_of_them=True)
                    save(self.step, True)
                    return False
                if saves:
                    with self._hold_up("checkpoint"):
                        save(self.step, is_last)
        return True

    def _launch(self, ready: "Future[_StepInput]", stop_asked: bool) -> "_PendingStep":
        """Queue one step on the device; nothing here waits for it."""
        training = self.config.training
        clock = PhaseClock(self.device)
        step_input = ready.result()
        clock.mark("data")
        # For dropout: other masks on every rank and step, and the same after a resume.
        torch.manual_seed(
            int(np.random.SeedSequence((training.seed, self.step, dist.get_rank())).generate_state(1)[0])
        )
        # The divisor of the loss has to be known before the first backward pass. It stays on the device.
        supervised = to_device(torch.tensor(step_input.supervised), self.device)
        dist.all_reduce(supervised)
        loss = torch.zeros((), dtype=torch.float32, device=self.device)
        for batch in step_input.batches:
            part = self._loss(batch) / supervised
            part.backward()
            loss = loss + part.detach()
        clock.mark("compute")
        with self._hold_up("checkpoint"):
            self._before_update()
        clock.mark("")
        norm = optim.clip_gradients(self.model, training.max_grad_norm)
        rate = optim.learning_rate(self.step, self.plan.num_steps, training)
        optim.set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        clock.mark("optimizer")
        counts = RankCounts(
            supervised=step_input.supervised,
            tokens=step_input.tokens,
            positions=step_input.positions,
            squared_lengths=step_input.squared_lengths,
            memory_bytes=peak_memory_bytes(self.device),
            stop=stop_asked,
        )
        return _PendingStep(self.step + 1, rate, PendingReport(loss, norm, counts, clock))

    def _report(self, on_step: Callable[[TrainStep], None], *, all_of_them: bool) -> bool:
        """Hand out the metrics of steps that are due; whether any rank was asked to stop during them."""
        stop = False
        while len(self._pending) > (0 if all_of_them else self._lag):
            pending = self._pending.popleft()
            report = pending.report.read()
            _check(report, pending.step, self.config)
            on_step(self._metrics(pending, report))
            stop = stop or report.stop
        return stop

    def _metrics(self, pending: "_PendingStep", report: StepReport) -> TrainStep:
        now = time.monotonic()
        seconds, self._read_at = now - self._read_at, now
        held_up, self._held_up = self._held_up, dict.fromkeys(self._held_up, 0.0)
        flops = None
        if self._flops is not None:
            flops = self._flops.of_batch(report.tokens, report.supervised, report.squared_lengths)
        return TrainStep(
            step=pending.step,
            num_steps=self.plan.num_steps,
            loss=report.loss,
            worst_rank_loss=max((loss for loss in report.rank_losses if loss is not None), default=None),
            grad_norm=report.grad_norm,
            learning_rate=pending.learning_rate,
            num_tokens=report.tokens,
            num_supervised=report.supervised,
            num_positions=report.positions,
            num_devices=dist.get_world_size(),
            seconds=seconds,
            data_s=report.seconds["data"],
            compute_s=report.seconds["compute"],
            optimizer_s=report.seconds["optimizer"],
            checkpoint_s=held_up["checkpoint"],
            evaluation_s=held_up["evaluation"],
            flops=flops,
            peak_tflops=self._peak_tflops,
            memory_gib=report.memory_bytes / 2**30,
        )

    def _load(self, step: int) -> "_StepInput":
        """This rank's part of a step, on the device. Runs in another thread, a step ahead."""
        samples = rank_samples(
            self.dataset,
            self._order,
            step,
            global_batch_size=self.config.training.global_batch_size,
            total_samples=self.plan.total_samples,
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
        )
        micro = self.config.training.micro_batch_size
        batches = [collate(samples[i : i + micro], self.device) for i in range(0, len(samples), micro)]
        return _StepInput(
            batches=batches,
            supervised=num_supervised(samples),
            tokens=num_tokens(samples),
            positions=sum(batch.input_ids.numel() for batch in batches),
            squared_lengths=squared_lengths(samples),
        )

    def _evaluates(self) -> bool:
        every = self.config.evaluation.every_steps
        return every is not None and self.step % every == 0

    def _evaluate(self) -> Evaluation:
        assert self.heldout is not None
        loss, supervised = heldout_loss(
            self.model,
            self._loss,
            self.heldout,
            self.device,
            micro_batch_size=self.config.training.micro_batch_size,
            max_samples=self.config.evaluation.max_samples,
        )
        return Evaluation(name="step", step=self.step, loss=loss, num_supervised=supervised)

    @contextlib.contextmanager
    def _hold_up(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._held_up[what] += time.monotonic() - started


@dataclass(frozen=True)
class _StepInput:
    batches: list[Batch]
    supervised: int
    tokens: int
    positions: int
    squared_lengths: int


@dataclass(frozen=True)
class _PendingStep:
    step: int
    learning_rate: float
    report: PendingReport


def _check(report: StepReport, step: int, config: RunConfig) -> None:
    if not report.supervised:
        raise UserError(
            f"no token of the {config.training.global_batch_size} samples of step {step} is supervised: raise "
            "training.global_batch_size, or look at the data"
        )
    if math.isfinite(report.loss) and math.isfinite(report.grad_norm):
        return
    # Where only the norm is bad, no rank's loss is.
    bad = [n for n, loss in enumerate(report.rank_losses) if loss is not None and not math.isfinite(loss)]
    where = f" (rank {', '.join(map(str, bad))})" if 0 < len(bad) < len(report.rank_losses) else ""
    raise UserError(
        f"the loss of step {step} is {report.loss:.6g}{where} and the gradient norm {report.grad_norm:.6g}: lower "
        "training.learning_rate, or raise training.warmup_ratio"
    )


@contextlib.contextmanager
def _rare_garbage_collection() -> Iterator[Callable[[int], None]]:
    """Collect at the same steps on every rank, and at no other time; yields what to call after each step."""
    was_enabled = gc.isenabled()
    gc.disable()

    def collect(step: int) -> None:
        if step % _STEPS_BETWEEN_COLLECTIONS == 0:
            gc.collect()

    try:
        yield collect
    finally:
        if was_enabled:
            gc.enable()
