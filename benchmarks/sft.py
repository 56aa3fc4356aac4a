"""Fine-tuning on chats of uneven lengths: this project against transformers' Trainer and TRL's SFTTrainer.

All sides train the same model on the same documents in the same steps, with the same optimizer, and keep documents
apart. A ratio is taken in every repetition, between runs that follow one another; the order turns, so that a
machine that grows slower is unfair to none.

Each side runs in two settings, its fastest and its leanest (`benchmarks.settings`): rates are compared between the
former, memory between the latter, and losses between all.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import ours, peers
from benchmarks.figure import Figure
from benchmarks.hyperparameters import Hyperparameters
from benchmarks.options import Options
from benchmarks.result import Result, loss_difference
from benchmarks.settings import FASTEST, LEANEST, OURS_FASTEST, OURS_LEANEST
from benchmarks.workload import Work, quickstart_work

_LOSS_GOAL = {"fp32": 1e-3, "bf16": 1e-2}


def measure(options: Options) -> list[Figure]:
    """Train all sides, several times in turn."""
    work = quickstart_work(options.store, options.steps)
    sides = _sides(work, options.precision)
    rounds: list[dict[str, Result]] = []
    for repetition in range(options.repetitions):
        names = list(sides)
        first = repetition % len(names)
        rounds.append({name: _run(sides[name]) for name in names[first:] + names[:first]})
    return figures(rounds, work.num_supervised, options.precision)


def figures(rounds: list[dict[str, Result]], num_supervised: list[int], precision: str) -> list[Figure]:
    """Make figures of what was measured.

    Args:
        rounds: For each repetition, the result of every side, as `_sides` names them.
        num_supervised: Supervised tokens of each step.
        precision: Of all sides.
    """
    rates = [{name: result.rate(num_supervised) for name, result in sides.items()} for sides in rounds]
    peaks = [{name: result.peak_bytes for name, result in sides.items()} for sides in rounds]
    prefix = f"sft.{precision}"
    scale = [
        figure
        for name in rounds[0]
        for figure in (
            Figure(f"{prefix}.{name}.supervised_tokens_per_s", [rate[name] for rate in rates]),
            Figure(f"{prefix}.{name}.peak_gib", [peak[name] / 2**30 for peak in peaks]),
        )
    ]
    speed = [rate["ours_fastest"] / max(_of_peers(rate)) for rate in rates]
    memory = [peak["ours_leanest"] / min(_of_peers(peak)) for peak in peaks]
    losses = [max(loss_difference(result, sides["ours_fastest"]) for result in sides.values()) for sides in rounds]
    return [
        *scale,
        Figure(f"{prefix}.speed_over_better_peer", speed, at_least=2.0),
        Figure(f"{prefix}.memory_of_leaner_peer", memory, at_most=0.5),
        Figure(f"{prefix}.loss_difference", losses, at_most=_LOSS_GOAL[precision]),
    ]


def _sides(work: Work, precision: str) -> dict[str, Callable[[Path], Result]]:
    hyper = Hyperparameters()

    def peer(setting: peers.Setting) -> Callable[[Path], Result]:
        return lambda root: peers.train(work, hyper, precision, root, setting)

    def own(training: Mapping[str, object]) -> Callable[[Path], Result]:
        return lambda root: ours.train(work, hyper, precision, root, **training)

    return {
        "ours_fastest": own(OURS_FASTEST),
        **{f"{setting.peer}_fastest": peer(setting) for setting in FASTEST},
        "ours_leanest": own(OURS_LEANEST),
        **{f"{setting.peer}_leanest": peer(setting) for setting in LEANEST},
    }


def _run(side: Callable[[Path], Result]) -> Result:
    with tempfile.TemporaryDirectory(prefix="benchmark-") as root:
        return side(Path(root))


def _of_peers(values: Mapping[str, float]) -> list[float]:
    return [value for name, value in values.items() if not name.startswith("ours")]
