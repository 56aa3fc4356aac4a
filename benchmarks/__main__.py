"""Command line: `python -m benchmarks [NAME ...]`."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.options import Options

BENCHMARKS = {
    "sft": "fine-tuning on chats, against transformers' Trainer and TRL's SFTTrainer",
    "matmul": "a step's rate, against that of the matrix products alone",
    "overhead": "the trainer's step, against a bare loop of the same passes",
    "guard": "what watching costs: steps with beats, events, stops and probes, against steps without",
    "checkpoint": "how long a checkpoint in the background holds training up, and a step beside its verification",
    "load": "memory while a model is loaded, beyond its shard",
    "launch": "how long the train step takes to create its job in a cluster",
    "logs": "processor time and memory of following the logs of 64 pods, and lines that are lost",
    "tokenize": "tokenizing and packing, against datasets.map with TRL's packing, and the tokenizer's own rate",
    "tokenize_memory": "peak memory of tokenizing 100 MB and 2 GB of text; takes minutes, and 10 GB of the store",
    "packed_reading": "reading packed samples, as a share of a training step",
}

_HELP = """\
Each line is one figure: its name, the median with the lowest and highest of the repetitions, the goal, and ok or
short. Figures without a goal are there for scale. The exit code is 1 when a figure falls short.

benchmarks:
""" + "\n".join(f"  {name:<16} {what}" for name, what in BENCHMARKS.items())

_AFTER = """\
The first run converts the quick start's model, which takes half a minute. Nothing else should run on the machine.
What needs a GPU is measured by: python -m benchmarks.gpu --help"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description=_HELP,
        epilog=_AFTER,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run (default: all)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="default: %(default)s")
    parser.add_argument(
        "--repetitions", type=_positive, default=3, help="times each side is measured (default: %(default)s)"
    )
    parser.add_argument("--steps", type=_steps, default=8, help="steps of a run in sft (default: %(default)s)")
    parser.add_argument(
        "--store", type=Path, default=Path(".shardline/benchmarks"), help="keeps the model (default: %(default)s)"
    )
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {', '.join(unknown)}: choose from {', '.join(BENCHMARKS)}")
    options = Options(given.store.absolute(), given.precision, given.repetitions, given.steps)
    return report(given.names or list(BENCHMARKS), options)


def report(names: Sequence[str], options: Options) -> int:
    """Run benchmarks, print every figure as it comes, and return the exit code."""
    short = False
    for name in names:
        figures: list[Figure] = importlib.import_module(f"benchmarks.{name}").measure(options)
        for figure in figures:
            print(figure, flush=True)
        short |= any(figure.falls_short for figure in figures)
    return int(short)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _steps(text: str) -> int:
    from benchmarks.result import WARMUP_STEPS

    number = int(text)
    if number <= WARMUP_STEPS:
        raise argparse.ArgumentTypeError(f"more than the {WARMUP_STEPS} that are not counted")
    return number


if __name__ == "__main__":
    sys.exit(main())
