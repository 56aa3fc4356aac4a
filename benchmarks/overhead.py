"""What the trainer's loop costs beyond the passes: its step against a bare loop.

The bare loop has the same forward and backward passes over the same model and batches, the clipping and the
optimizer. The trainer adds reading and collating samples, the counts that travel between ranks, and metrics.
Both run in the same processes, in turn.
"""

import json
import sys

import torch
import torch.distributed as dist

from benchmarks.engine import on_ranks, repetitions, seconds, train_steps, trainer_of
from benchmarks.figure import Figure
from benchmarks.options import Options
from benchmarks.workload import quickstart_work
from training import optim
from training.data import Batch, GlobalOrder, collate, num_supervised, rank_samples
from training.head import SummedLoss
from training.run_folder import RunFolder
from training.trainer import Trainer

_RESULT = "overhead.json"
_STEPS = 2
"""Steps in a block; blocks of both kinds take turns, so that a slower minute of the machine falls on both."""


def measure(options: Options) -> list[Figure]:
    """Time both loops in turn."""
    work = quickstart_work(options.store, _STEPS)
    blocks = on_ranks("benchmarks.overhead", work, options, lambda path: json.loads((path / _RESULT).read_text()))
    prefix = f"overhead.{options.precision}"
    ratios = [block["trainer"] / block["bare"] - 1 for block in blocks]
    return [
        Figure(f"{prefix}.trainer_step_s", [block["trainer"] / _STEPS for block in blocks]),
        Figure(f"{prefix}.bare_step_s", [block["bare"] / _STEPS for block in blocks]),
        Figure(f"{prefix}.share_beyond_the_passes", ratios, at_most=0.03),
    ]


def main(run_folder: str) -> None:
    """A rank's part."""
    folder = RunFolder.at(run_folder)
    with trainer_of(folder) as trainer:
        batches = _batches(trainer)
        loss = SummedLoss(trainer.model)

        def train() -> None:
            train_steps(trainer, 0, _STEPS)

        def bare() -> None:
            for batch, supervised in batches:
                (loss(batch) / supervised).backward()
                optim.clip_gradients(trainer.model, trainer.config.training.max_grad_norm)
                trainer.optimizer.step()
                trainer.optimizer.zero_grad(set_to_none=True)

        train()
        bare()
        blocks = []
        for number in range(2 * repetitions()):
            # The order turns, so that neither always follows the other.
            order = [("trainer", train), ("bare", bare)][:: -1 if number % 2 else 1]
            blocks.append({name: seconds(loop) for name, loop in order})
        if dist.get_rank() == 0:
            (folder.path / _RESULT).write_text(json.dumps(blocks))


def _batches(trainer: Trainer) -> list[tuple[Batch, int]]:
    """This rank's batches of the first steps, each with the supervised tokens of the whole step."""
    order = GlobalOrder(len(trainer.dataset), trainer.config.training.seed)
    batches = []
    for step in range(_STEPS):
        samples = rank_samples(
            trainer.dataset,
            order,
            step,
            global_batch_size=trainer.config.training.global_batch_size,
            total_samples=trainer.plan.total_samples,
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
        )
        supervised = torch.tensor(num_supervised(samples))
        dist.all_reduce(supervised)
        batches.append((collate(samples, trainer.device), int(supervised)))
    return batches


if __name__ == "__main__":
    main(sys.argv[1])
