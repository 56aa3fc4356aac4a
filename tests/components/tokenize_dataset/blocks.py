"""Blocks of made-up rows, which worker processes can import, and a step that tokenizes until it is ended."""

import os
import signal
import sys
import time
from dataclasses import dataclass

from components.step import Step
from components.tokenize_dataset import read, workers
from components.tokenize_dataset.encode import Setup
from components.tokenize_dataset.shapes import Shape
from components.tokenize_dataset.tokenize import tokenize
from tests.doubles.models import tiny_tokenizer
from training.config import DataConfig
from training.sources import lines
from training.sources.rows import Row


@dataclass(frozen=True)
class TextBlock:
    """Ten texts, after a time; or the death of the worker that has them."""

    number: int
    seconds: float = 0.0
    deadly_but_for: int | None = None

    def rows(self):
        if self.deadly_but_for not in (None, os.getpid()):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.seconds)
        for place in range(10):
            yield Row(f"row {place}", {"text": f"a {'b ' * self.number} c"})


def text_setup():
    data = DataConfig(train="t.jsonl", heldout_fraction=0.1)
    return Setup(data, [Shape("text", "plain text", {"text": "text"})], 1, tiny_tokenizer())


def main():
    """Tokenize as the step does, slowly, with workers, and say when they are there."""
    start, take = workers._pool, read._Reader.take

    def start_and_tell(*arguments):
        pool = start(*arguments)
        pool.submit(workers._noop).result()
        print("working", flush=True)
        return pool

    def take_slowly(*arguments):
        time.sleep(0.1)
        take(*arguments)

    workers._ALONE_S, workers._pool, read._Reader.take = 0.0, start_and_tell, take_slowly
    lines.BLOCK_BYTES = 100
    with Step("tokenize_dataset", sys.argv[1], sys.argv[2]) as step:
        tokenize(step)
