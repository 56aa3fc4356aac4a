"""How long an asynchronous checkpoint holds training up, and whether verifying one slows training down.

A save's stall is a share of a synchronous save. The state is copied while the next step computes, so that step
counts: its time beyond that of a step without a save is told beside it. Verification is compared over steps with
and without one that goes on, in turn; it never ends here, so no step is without its part of it.
"""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from benchmarks.engine import on_ranks, repetitions, seconds, train_steps, trainer_of
from benchmarks.figure import Figure
from benchmarks.options import Options
from benchmarks.workload import quickstart_work
from training.checkpoint import checkpoints
from training.checkpoint.checkpointer import Checkpointer
from training.checkpoint.manifest import read_manifest
from training.checkpoint.verify import Pace, Stopped, be_modest, damaged_files, shares
from training.run_folder import RunFolder
from training.trainer import Trainer

_RESULT = "checkpoint.json"

_STEPS = 5
"""Beside a verification, in a round: two steps alike differ by more than what is looked for."""

_SLOWER_BY_VERIFYING = 1.05
"""A step beside a verification that goes on may take so many times as long as one without, on the same cores."""


def measure(options: Options) -> list[Figure]:
    """Save in both ways, in turn, and step with and without a verification, in turn.

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
        Figure(f"{prefix}.verified_gib_per_step", [each["verified_gib"] for each in rounds]),
        Figure(
            f"{prefix}.step_while_verifying_over_plain",
            [ratio for each in rounds for ratio in each["verifying_over_quiet"]],
            at_most=_SLOWER_BY_VERIFYING,
        ),
    ]


def main(run_folder: str) -> None:
    """A rank's part."""
    folder = RunFolder.at(run_folder)
    with trainer_of(folder) as trainer:
        # Moments exist from the first step on.
        train_steps(trainer, 0, 1)
        # The first round is not counted.
        rounds = [
            {**_save_in_both_ways(trainer, folder, number + 1), **_step_while_verifying(trainer, folder)}
            for number in range(repetitions() + 1)
        ]
        if dist.get_rank() == 0:
            (folder.path / _RESULT).write_text(json.dumps(rounds[1:]))


def _save_in_both_ways(trainer: Trainer, folder: RunFolder, number: int) -> dict[str, Any]:
    plain = seconds(partial(train_steps, trainer, 0, 1))
    waits: list[float] = []
    with _checkpointer(trainer, folder, asynchronous=True) as background:

        def wait_for_copy() -> None:
            started = time.perf_counter()
            background.wait_for_copy()
            waits.append(time.perf_counter() - started)

        stall = seconds(partial(background.save, number))
        step = seconds(partial(train_steps, trainer, 0, 1, wait_for_copy))
    with _checkpointer(trainer, folder, asynchronous=False) as blocking:
        synchronous = seconds(partial(blocking.save, number))
    return {"stall": stall + sum(waits), "slower": step - plain - sum(waits), "synchronous": synchronous}


@contextlib.contextmanager
def _checkpointer(trainer: Trainer, folder: RunFolder, *, asynchronous: bool) -> Iterator[Checkpointer]:
    """One whose work in the background is over at the end, so that it slows down nothing that comes after."""
    changes = {"asynchronous": asynchronous, "keep": 1, "keep_after_finish": True}
    checkpointer = Checkpointer(
        folder.checkpoints / ("stall" if asynchronous else "synchronous"),
        trainer.model,
        trainer.optimizer,
        {},
        folder.config().checkpoint.model_copy(update=changes),
        attempt=1,
    )
    yield checkpointer
    checkpointer.wait()
    checkpointer.close(finished=True)
    # The first rank removes the checkpoint before, which no rank may find any more.
    dist.barrier()


def _step_while_verifying(trainer: Trainer, folder: RunFolder) -> dict[str, Any]:
    step = partial(train_steps, trainer, 0, 1)
    (checkpoint,) = checkpoints(folder.checkpoints / "synchronous")
    read: list[int] = []
    before, ratios = seconds(step), []
    for _ in range(_STEPS):
        with _verification(checkpoint, read):
            verifying = seconds(step)
        # On both sides of it, so that a machine that gets slower or faster meanwhile favours neither.
        after = seconds(step)
        ratios.append(2 * verifying / (before + after))
        before = after
    return {"verifying_over_quiet": ratios, "verified_gib": sum(read) / 2**30 / _STEPS}


@contextlib.contextmanager
def _verification(checkpoint: Path, read: list[int]) -> Iterator[None]:
    """Let this rank verify its share of a checkpoint again and again, as after a save."""
    manifest = read_manifest(checkpoint)
    assert manifest is not None
    files, mine = manifest.files, shares(manifest.files, dist.get_world_size())[dist.get_rank()]
    over = threading.Event()
    pace = Pace(over)

    def go_on(num_bytes: int) -> None:
        read.append(num_bytes)
        pace.rest()
        if over.is_set():
            raise Stopped

    def work() -> None:
        be_modest()
        with contextlib.suppress(Stopped):
            while True:
                assert damaged_files(checkpoint, files, mine, go_on) == []

    thread = threading.Thread(target=work)
    thread.start()
    yield
    over.set()
    thread.join()


if __name__ == "__main__":
    main(sys.argv[1])
