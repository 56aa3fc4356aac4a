"""The engine in a process of the benchmarks' own, so that its parts can be timed beside each other."""

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers

from benchmarks.hyperparameters import Hyperparameters
from benchmarks.options import Options
from benchmarks.ours import make_run
from benchmarks.torchrun import torchrun
from benchmarks.workload import WORLD_SIZE, Work
from training.build import build_model
from training.data import PackedDataset
from training.device import collective_backend, default_device
from training.events import TrainStep
from training.model import load_weights
from training.optim import make_optimizer
from training.precision import resolve_precision
from training.run_folder import RunFolder
from training.trainer import Plan, Trainer

ENVIRONMENT = {"THP_MEM_ALLOC_ENABLE": "1"}
"""What `training.node` gives its ranks on a CPU."""


def on_ranks(module: str, work: Work, options: Options, read: Callable[[Path], Any]) -> Any:
    """Run a module's `main` on the ranks of a run over the work, and read what it left in the run's folder.

    Args:
        module: Takes the run's folder as its argument.
        work: What to train on.
        options: Precision and repetitions.
        read: Reads the result from the run's folder.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as root:
        folder = make_run(work, Hyperparameters(), options.precision, Path(root))
        environment = {**ENVIRONMENT, "BENCHMARK_REPETITIONS": str(options.repetitions)}
        torchrun(module, str(folder.path), WORLD_SIZE, environment)
        return read(folder.path)


def repetitions() -> int:
    """How often a rank is to repeat its measurement."""
    return int(os.environ["BENCHMARK_REPETITIONS"])


@contextlib.contextmanager
def trainer_of(folder: RunFolder) -> Iterator[Trainer]:
    """The trainer that a rank of this run would have, in a process group of its own."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config, inputs, device = folder.config(), folder.inputs(), default_device()
    dist.init_process_group(collective_backend(device))
    compute = resolve_precision(config.training.precision, device)
    model = build_model(config, inputs.model, device, compute)
    load_weights(model, inputs.model)
    optimizer = make_optimizer(model, config.training)
    dataset = PackedDataset(inputs.dataset / "train.arrow")
    yield Trainer(config, model, optimizer, dataset, None, device, compute)
    dist.barrier()
    dist.destroy_process_group()


def train_steps(
    trainer: Trainer,
    first: int,
    number: int,
    before_update: Callable[[], None] = lambda: None,
    on_step: Callable[[TrainStep], None] = lambda metrics: None,
) -> None:
    """Let the trainer take some of its run's steps, by its own loop."""
    trainer.step = first
    trainer.plan = Plan(first + number, trainer.plan.total_samples)
    trainer.run(
        on_step=on_step,
        on_evaluation=lambda evaluation: None,
        on_alert=lambda alert: None,
        save=lambda step, is_last: None,
        save_wanted=lambda: False,
        before_update=before_update,
        stop_asked=lambda: False,
    )


def seconds(action: Callable[[], object]) -> float:
    """Wall time of something that all ranks do, from the first that begins to the last that ends."""
    dist.barrier()
    started = time.perf_counter()
    action()
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    dist.barrier()
    return time.perf_counter() - started


def median_seconds(action: Callable[[], object], times: int) -> float:
    """Median wall time of an action on this rank alone, after one that is not counted."""
    action()
    measured = []
    for _ in range(times):
        started = time.perf_counter()
        action()
        measured.append(time.perf_counter() - started)
    return statistics.median(measured)
