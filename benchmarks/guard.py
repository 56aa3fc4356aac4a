"""What it costs to watch a run: its steps with all that notices faults, against steps without.

A watched step writes beats and events, agrees on stops between micro-batches, and compares the ranks' devices.
Both kinds run in the same processes, in turn. Two steps of one kind differ by much more than what is looked for,
so the processor time of the calls that only watched steps make is added up as well. What the node's own process
does meanwhile is measured apart: it looks at beats and writes its heartbeat.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.engine import on_ranks, repetitions, seconds, train_steps, trainer_of
from benchmarks.figure import Figure
from benchmarks.options import Options
from benchmarks.workload import WORLD_SIZE, quickstart_work
from training.background_events import BackgroundEventWriter
from training.device_comparison import DeviceComparison
from training.guard.beat import BeatWriter
from training.guard.guard import Guard
from training.heartbeat import Heartbeat
from training.run_folder import RunFolder
from training.stop_agreement import StopAgreement
from training.trainer import Trainer

_RESULT = "guard.json"
_MICRO_BATCHES = 2
_PAIRS = 8
"""Of steps, in a repetition: what is looked for is small against the difference of two steps of one kind."""

_NODE_S = 5.0
_HEARTBEAT_S = 2.0


def measure(options: Options) -> list[Figure]:
    """Time both kinds of steps in turn.

    Processor time tells the same as wall time where nothing waits, and less of what else the machine does.
    """
    work = quickstart_work(options.store, _MICRO_BATCHES)
    result = on_ranks("benchmarks.guard", work, options, lambda path: json.loads((path / _RESULT).read_text()))
    prefix, pairs = f"guard.{options.precision}", result["pairs"]
    return [
        Figure(f"{prefix}.step_s", [pair["off"] for pair in pairs]),
        Figure(f"{prefix}.share_of_a_step", [pair["on"] / pair["off"] - 1 for pair in pairs], at_most=0.01),
        Figure(
            f"{prefix}.share_of_processor_time",
            [pair["on_cpu"] / pair["off_cpu"] - 1 for pair in pairs],
            at_most=0.01,
        ),
        Figure(
            f"{prefix}.share_spent_in_its_calls",
            [pair["calls"] / (WORLD_SIZE * pair["on"]) for pair in pairs],
            at_most=0.01,
        ),
        Figure("guard.node_share_of_a_core", result["node"], at_most=0.01),
    ]


def main(run_folder: str) -> None:
    """A rank's part."""
    folder = RunFolder.at(run_folder)
    with trainer_of(folder) as trainer:
        _use_micro_batches(trainer)
        calls = _Calls()
        kinds = {"on": _watched_step(trainer, folder, calls), "off": _plain_step(trainer)}
        for step in kinds.values():
            step()
        pairs = []
        for number in range(_PAIRS * repetitions()):
            pair, calls.seconds = {}, 0.0
            # The order turns, so that neither always follows the other.
            for name in list(kinds)[:: -1 if number % 2 else 1]:
                started = time.process_time()
                pair[name] = seconds(kinds[name])
                pair[f"{name}_cpu"] = _of_all_ranks(time.process_time() - started)
            pairs.append({**pair, "calls": _of_all_ranks(calls.seconds)})
        if dist.get_rank() == 0:
            node = [_node_share(folder) for _ in range(repetitions())]
            (folder.path / _RESULT).write_text(json.dumps({"pairs": pairs, "node": node}))


def _use_micro_batches(trainer: Trainer) -> None:
    """Let a step have as many samples as it needs for several micro-batches."""
    training = trainer.config.training.model_copy(update={"global_batch_size": _MICRO_BATCHES * WORLD_SIZE})
    trainer.config = trainer.config.model_copy(update={"training": training})


class _Calls:
    """Adds up the processor time of calls.

    Attributes:
        seconds: So far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, whose time is added."""

        def timed_call(*args: Any, **options: Any) -> Any:
            started = time.thread_time()
            try:
                return call(*args, **options)
            finally:
                self.seconds += time.thread_time() - started

        return timed_call


def _watched_step(trainer: Trainer, folder: RunFolder, calls: _Calls) -> Callable[[], None]:
    class TimedAgreement(StopAgreement):
        def __call__(self, is_asked: bool) -> bool:
            return bool(calls.timed(super().__call__)(is_asked))

    rank = dist.get_rank()
    beat = calls.timed(BeatWriter(rank, str(_beats(folder))))
    write = calls.timed(BackgroundEventWriter(folder.events, f"rank-{rank}", attempt=1).write)
    agreement, comparison = TimedAgreement(dist.new_group(backend="gloo")), trainer.comparison
    for name in ("run", "take", "asks", "learn"):
        setattr(comparison, name, calls.timed(getattr(comparison, name)))

    def step() -> None:
        trainer.beat = beat
        trainer.stop_agreement, trainer.comparison = agreement, comparison
        train_steps(trainer, 0, 1, on_step=write)

    return step


def _plain_step(trainer: Trainer) -> Callable[[], None]:
    class NoAgreement(StopAgreement):
        def __call__(self, is_asked: bool) -> bool:
            return False

    hosts = dist.new_group(backend="gloo")
    without = NoAgreement(hosts), DeviceComparison(None, trainer.device, hosts)

    def step() -> None:
        trainer.beat = lambda part, step: None
        trainer.stop_agreement, trainer.comparison = without
        train_steps(trainer, 0, 1)

    return step


def _node_share(folder: RunFolder) -> float:
    """Processor time of what a node does beside its ranks, as a share of a core."""
    guard = Guard({}, _beats(folder), folder.path / "stacks", step_s=60, other_s=600)
    started = time.process_time()
    with Heartbeat(folder.path / "heartbeat", _HEARTBEAT_S):
        guard.start()
        time.sleep(_NODE_S)
        guard.stop()
    return (time.process_time() - started) / _NODE_S


def _beats(folder: RunFolder) -> Path:
    path = folder.path / "beats"
    path.mkdir(exist_ok=True)
    return path


def _of_all_ranks(seconds: float) -> float:
    total = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)


if __name__ == "__main__":
    main(sys.argv[1])
