"""Blocks of made-up rows, which worker processes can import."""

import os
import signal
import time
from dataclasses import dataclass

from components.tokenize_dataset import workers
from components.tokenize_dataset.encode import Setup
from components.tokenize_dataset.shapes import Shape
from components.tokenize_dataset.workers import encode_blocks
from tests.doubles.models import tiny_tokenizer
from training.config import DataConfig
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
    """Tokenize without an end, with two workers, and say when they are there."""
    start = workers._pool

    def start_and_tell(*arguments):
        pool = start(*arguments)
        pool.submit(workers._noop).result()
        print("working", flush=True)
        return pool

    workers._ALONE_S, workers._pool = 0.0, start_and_tell
    blocks = ((0, TextBlock(1, seconds=0.1)) for _ in iter(int, 1))
    for _ in encode_blocks(text_setup(), blocks, 2):
        pass


if __name__ == "__main__":
    main()
