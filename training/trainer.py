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
from training.collective_timeout import collective_timeout
from training.config import RunConfig
from training.data import Batch, GlobalOrder, PackedDataset
from training.device import peak_memory_bytes, to_device, use_device
from training.device_comparison import DeviceComparison
from training.evaluation import heldout_loss
from training.events import Alert, Evaluation, TrainStep
from training.flops import ModelFlops
from training.guard.beat import STEP_PARTS
from training.head import SummedLoss
from training.nonfinite import check_step
from training.peaks import device_name, peak_tflops
from training.run_ahead import RunAhead
from training.save_clock import SaveClock
from training.step_input import StepInput, load_step
from training.step_report import PendingReport, RankCounts, StepReport
from training.stop_agreement import StopAgreement

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
        skipped: Steps to leave out, counted from 1; see `training.skipped`.
        beat: Called with each part of a step as it begins, and the steps done; see `training.guard.beat`.
        lag: Steps that the host may be ahead of what it has read from the device. Unset: one on accelerators,
            so that reading never holds them up; none on a CPU.

    Attributes:
        step: Steps done; set it after loading a checkpoint.
        plan: How far to go.
        beat: As given.
        stop_agreement: How ranks stop together.
        comparison: How slow ranks are found.
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
        skipped: frozenset[int] = frozenset(),
        beat: Callable[[str, int], None] = lambda part, step: None,
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
        self._skipped = skipped
        self.beat = beat
        self._lag = lag if lag is not None else int(device.type != "cpu")
        hosts = dist.new_group(backend="gloo", timeout=collective_timeout(config.resilience))
        self.stop_agreement = StopAgreement(hosts)
        self.comparison = DeviceComparison(config.resilience.straggler_ratio, device, hosts)
        self._run_ahead = RunAhead(device)
        self._save_clock = SaveClock(config.checkpoint.every_s)
        self._pending: deque[_PendingStep] = deque()
        self._is_first_step = True
        self._read_at = 0.0
        self._before_update: Callable[[], None] = lambda: None
        self._save_wanted: Callable[[], bool] = lambda: False
        self._stop_asked: Callable[[], bool] = lambda: False
        # Seconds since the last report that were not spent on steps.
        self._held_up = {"checkpoint": 0.0, "evaluation": 0.0}

    def run(
        self,
        *,
        on_step: Callable[[TrainStep], None],
        on_evaluation: Callable[[Evaluation], None],
        on_alert: Callable[[Alert], None],
        save: Callable[[int, bool], None],
        save_wanted: Callable[[], bool],
        before_update: Callable[[], None],
        stop_asked: Callable[[], bool],
    ) -> bool:
        """Train to the end of the plan, or until any rank is asked to stop. Collective.

        A stop leaves a step where it is, between two micro-batches, and saves the state before it.

        Args:
            on_step: Called on every rank with each step's metrics.
            on_evaluation: Called on every rank with each held-out loss.
            on_alert: Called on every rank with what is not as it should be.
            save: Saves a checkpoint of a step; called on all ranks at the same steps. The second argument says
                whether it is the last, so that there is nothing to go on with meanwhile.
            save_wanted: Whether one should be saved before it is due; the first rank's answer counts for all.
            before_update: Called on every rank before weights and moments change; it may wait for a save that
                still reads them.
            stop_asked: Whether this rank was asked to stop.

        Returns:
            Whether the plan was finished.

        Raises:
            UserError: A step has nothing to learn.
            NonFinite: The loss of a step is not finite. Both are the same on every rank, and come before that
                step's state is saved.
        """
        self._read_at = time.monotonic()
        self._before_update, self._save_wanted, self._stop_asked = before_update, save_wanted, stop_asked
        self._save_clock.restart()
        with (
            ThreadPoolExecutor(1, "reader", use_device, (self.device,)) as reader,
            _rare_garbage_collection() as collect,
        ):
            batches = reader.submit(self._load, self.step)
            try:
                while self.step < self.plan.num_steps:
                    ready, batches = batches, reader.submit(self._load, self.step + 1)
                    self._pending.append(self._launch(ready))
                    self.step += 1
                    collect(self.step)
                    is_last = self.step == self.plan.num_steps
                    saves = is_last or self.step % self.config.checkpoint.every_steps == 0
                    evaluates = self._evaluates()
                    saves |= self._report(on_step, on_alert, all_of_them=saves or evaluates)
                    if evaluates:
                        with self._hold_up("evaluation"):
                            on_evaluation(self._evaluate())
                    if saves:
                        self._report(on_step, on_alert, all_of_them=True)
                        self._save(save, is_last=is_last)
            except _Stopped:
                # What the unfinished step has summed up would be added to the next.
                self.optimizer.zero_grad(set_to_none=True)
                self._report(on_step, on_alert, all_of_them=True)
                if self.step > 0:
                    self._save(save, is_last=True)
                return False
        self.stop_agreement.end()
        return True

    def _launch(self, ready: "Future[StepInput]") -> "_PendingStep":
        """Queue one step on the device; nothing here waits for it to be done."""
        training = self.config.training
        is_skipped = self.step + 1 in self._skipped
        clock = PhaseClock(self.device)
        self._mark("data")
        step_input = ready.result()
        clock.mark("data")
        self.comparison.run()
        clock.mark("")
        # For dropout: other masks on every rank and step, and the same after a resume.
        torch.manual_seed(
            int(np.random.SeedSequence((training.seed, self.step, dist.get_rank())).generate_state(1)[0])
        )
        # The divisor of the loss has to be known before the first backward pass. It stays on the device.
        supervised = to_device(torch.tensor(step_input.supervised), self.device)
        dist.all_reduce(supervised)
        loss = torch.zeros((), dtype=torch.float32, device=self.device)
        for batch in step_input.batches:
            self._go_on("forward")
            loss = loss + self._pass(batch, supervised, learns=not is_skipped)
        clock.mark("compute")
        norm, rate = torch.zeros(()), optim.learning_rate(self.step, self.plan.num_steps, training)
        if not is_skipped:
            norm = self._update(rate, clock)
        clock.mark("optimizer")
        counts = RankCounts(
            supervised=step_input.supervised,
            tokens=step_input.tokens,
            positions=step_input.positions,
            squared_lengths=step_input.squared_lengths,
            memory_bytes=peak_memory_bytes(self.device),
            probe_s=self.comparison.take(),
            wants_save=self._save_clock.is_due() or self._save_wanted(),
            wants_probe=self.comparison.asks(),
        )
        return _PendingStep(self.step + 1, rate, is_skipped, PendingReport(loss, norm, counts, clock))

    def _pass(self, batch: Batch, supervised: torch.Tensor, *, learns: bool) -> torch.Tensor:
        """A micro-batch's share of the step's loss; its gradients are added up."""
        with torch.set_grad_enabled(learns):
            part = self._loss(batch) / supervised
        if learns:
            self._mark("backward")
            part.backward()
        return part.detach()

    def _update(self, rate: float, clock: PhaseClock) -> torch.Tensor:
        """Let the optimizer take its step; returns the gradients' norm."""
        self._mark("checkpoint")
        with self._hold_up("checkpoint"):
            self._before_update()
        clock.mark("")
        self._mark("optimizer")
        norm = optim.clip_gradients(self.model, self.config.training.max_grad_norm)
        optim.set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _go_on(self, part: str) -> None:
        """Before every pass: say so, and agree with the other ranks whether there is to be one.

        Raises:
            _Stopped: There is not, on any rank.
        """
        self._mark(part)
        self._run_ahead.wait()
        if self.stop_agreement(self._stop_asked()):
            raise _Stopped

    def _mark(self, part: str) -> None:
        is_long = self._is_first_step and part in STEP_PARTS
        self.beat("first_step" if is_long else part, self.step)

    def _report(
        self, on_step: Callable[[TrainStep], None], on_alert: Callable[[Alert], None], *, all_of_them: bool
    ) -> bool:
        """Hand out the metrics of steps that are due; whether a checkpoint is wanted."""
        wants_save = False
        while len(self._pending) > (0 if all_of_them else self._lag):
            pending = self._pending.popleft()
            report = pending.report.read()
            if not pending.is_skipped:
                check_step(report, pending.step, self.config)
            self._is_first_step = False
            on_step(self._metrics(pending, report))
            for alert in self.comparison.learn(report.probe_s, is_wanted=report.wants_probe):
                on_alert(alert)
            wants_save |= report.wants_save
        return wants_save

    def _save(self, save: Callable[[int, bool], None], *, is_last: bool) -> None:
        self._mark("checkpoint")
        with self._hold_up("checkpoint"):
            save(self.step, is_last)
        self._save_clock.restart()

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
            skipped=pending.is_skipped,
        )

    def _load(self, step: int) -> StepInput:
        """This rank's part of a step. Runs in another thread, a step ahead."""
        return load_step(
            self.dataset, self._order, step, self.config.training, self.plan.total_samples, self.device
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
            before_pass=lambda: self._go_on("evaluation"),
        )
        return Evaluation(name="step", step=self.step, loss=loss, num_supervised=supervised)

    @contextlib.contextmanager
    def _hold_up(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._held_up[what] += time.monotonic() - started


@dataclass(frozen=True)
class _PendingStep:
    step: int
    learning_rate: float
    is_skipped: bool
    report: PendingReport


class _Stopped(Exception):
    """The ranks have agreed to stop."""


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
