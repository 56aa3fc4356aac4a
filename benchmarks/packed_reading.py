"""What reading packed samples costs of a training step: from the mapped file to the batches on the device."""

import json
import sys

import torch.distributed as dist

from benchmarks.engine import median_seconds, on_ranks, repetitions, seconds, train_steps, trainer_of
from benchmarks.figure import Figure
from benchmarks.options import Options
from benchmarks.workload import quickstart_work
from training.data import GlobalOrder, collate, rank_samples
from training.run_folder import RunFolder
from training.trainer import Trainer

_RESULT = "packed_reading.json"
_STEPS = 2
_READINGS = 20
"""Readings of a step's samples in a repetition, of which the median counts."""


def measure(options: Options) -> list[Figure]:
    """Time steps, which read their samples too, and the reading alone."""
    work = quickstart_work(options.store, _STEPS)
    rounds = on_ranks(
        "benchmarks.packed_reading", work, options, lambda path: json.loads((path / _RESULT).read_text())
    )
    prefix = f"packed_reading.{options.precision}"
    return [
        Figure(f"{prefix}.ms", [1000 * each["reading"] for each in rounds]),
        Figure(f"{prefix}.share_of_a_step", [each["reading"] / each["step"] for each in rounds], at_most=0.01),
    ]


def main(run_folder: str) -> None:
    """A rank's part."""
    folder = RunFolder.at(run_folder)
    with trainer_of(folder) as trainer:
        train_steps(trainer, 0, 1)
        rounds = []
        for _ in range(repetitions()):
            step = seconds(lambda: train_steps(trainer, 0, _STEPS)) / _STEPS
            reading = median_seconds(lambda: _read(trainer, 0), _READINGS)
            rounds.append({"step": step, "reading": reading})
        if dist.get_rank() == 0:
            (folder.path / _RESULT).write_text(json.dumps(rounds))


def _read(trainer: Trainer, step: int) -> None:
    training = trainer.config.training
    samples = rank_samples(
        trainer.dataset,
        GlobalOrder(len(trainer.dataset), training.seed),
        step,
        global_batch_size=training.global_batch_size,
        total_samples=trainer.plan.total_samples,
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
    )
    micro = training.micro_batch_size
    for first in range(0, len(samples), micro):
        collate(samples[first : first + micro], trainer.device)


if __name__ == "__main__":
    main(sys.argv[1])
