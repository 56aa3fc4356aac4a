"""How long an asynchronous checkpoint holds training up, as a share of a synchronous one.

The state is copied while the next step computes, so that step counts: its time beyond that of a step without a
save is part of the stall, with all that the copy and the writing take from the step.
"""

import json
import sys
import time
from functools import partial

import torch.distributed as dist

from benchmarks.engine import on_ranks, repetitions, seconds, train_steps, trainer_of
from benchmarks.figure import Figure
from benchmarks.options import Options
from benchmarks.workload import quickstart_work
from training.checkpoint import Checkpointer
from training.run_folder import RunFolder

_RESULT = "checkpoint.json"


def measure(options: Options) -> list[Figure]:
    """Save in both ways, in turn.

    The stall is for how long training is held up: by the call, and before the next update, until the state is
    copied. Where the same cores copy, write and compute, the next step is slower too, which is told beside it.
    """
    work = quickstart_work(options.store, 1)
    rounds = on_ranks(
        "benchmarks.checkpoint", work, options, lambda path: json.loads((path / _RESULT).read_text())
    )
    prefix = f"checkpoint.{options.precision}"
    return [
        Figure(f"{prefix}.synchronous_s", [each["synchronous"] for each in rounds]),
        Figure(f"{prefix}.stall_s", [each["stall"] for each in rounds]),
        Figure(f"{prefix}.next_step_slower_s", [each["slower"] for each in rounds]),
        Figure(f"{prefix}.stall_share", [each["stall"] / each["synchronous"] for each in rounds], at_most=0.10),
    ]


def main(run_folder: str) -> None:
    """A rank's part."""
    folder = RunFolder.at(run_folder)
    with trainer_of(folder) as trainer:
        # Moments exist from the first step on.
        train_steps(trainer, 0, 1)
        settings = folder.config().checkpoint
        kinds = {
            name: Checkpointer(
                folder.checkpoints / name,
                trainer.model,
                trainer.optimizer,
                {},
                settings.model_copy(update={"asynchronous": name == "stall", "keep": 1}),
                attempt=1,
            )
            for name in ("synchronous", "stall")
        }
        rounds = []
        # The first of each is not counted.
        for number in range(repetitions() + 1):
            background, plain = kinds["stall"], seconds(partial(train_steps, trainer, 0, 1))
            waits: list[float] = []

            def wait_for_copy(background: Checkpointer = background, waits: list[float] = waits) -> None:
                started = time.perf_counter()
                background.wait_for_copy()
                waits.append(time.perf_counter() - started)

            stall = seconds(partial(background.save, number + 1))
            step = seconds(partial(train_steps, trainer, 0, 1, wait_for_copy))
            # What is written in the background must not slow down what is measured next.
            background.wait()
            synchronous = seconds(partial(kinds["synchronous"].save, number + 1))
            slower = step - plain - sum(waits)
            rounds.append({"stall": stall + sum(waits), "slower": slower, "synchronous": synchronous})
        if dist.get_rank() == 0:
            (folder.path / _RESULT).write_text(json.dumps(rounds[1:]))


if __name__ == "__main__":
    main(sys.argv[1])
