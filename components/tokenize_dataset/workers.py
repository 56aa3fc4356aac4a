"""Encoding blocks on all cores, in the blocks' order."""

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import ModuleType

from components.step import StepFailed
from components.tokenize_dataset.encode import BlockEncoder, EncodedBlock, Setup
from training.processes import die_with_ancestor
from training.sources.rows import Block

_ALONE_S = 2.0
"""Time after which processes are started, which themselves take seconds until they work."""

_QUOTA = Path("/sys/fs/cgroup/cpu.max")

_BLOCKS_AHEAD = 2
"""Blocks for each worker that are read or encoded and not yet fetched."""


def encode_blocks(
    setup: Setup, blocks: Iterable[tuple[int, Block]], num_workers: int
) -> Generator[tuple[int, EncodedBlock], None, None]:
    """Encode blocks, each given with the number of its source; the result does not depend on the workers.

    What is done within seconds is done in this process, and so are blocks while the workers start.

    Raises:
        StepFailed: A worker was killed.
        UserError: As of `BlockEncoder`, or a block's source cannot be read on.
    """
    encoder = BlockEncoder(setup)
    remaining = iter(blocks)
    started = time.monotonic()
    for source, block in remaining:
        yield source, encoder.encode(source, block)
        if num_workers > 1 and time.monotonic() - started >= _ALONE_S:
            break
    else:
        return
    pool = _pool(setup, encoder, num_workers)
    try:
        ready = pool.submit(_noop)
        for source, block in remaining:
            if ready.done():
                yield from _on(pool, num_workers, source, block, remaining)
            else:
                yield source, encoder.encode(source, block)
    except BrokenProcessPool as error:
        raise StepFailed(
            "a process that tokenizes was killed, as the system does when memory runs out: give the step more "
            f"memory, or set data.num_workers to fewer than {num_workers}"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def usable_cores() -> int:
    """Cores that this process may use: of its affinity, and of the quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))


def _on(
    pool: ProcessPoolExecutor, num_workers: int, source: int, block: Block, rest: Iterator[tuple[int, Block]]
) -> Iterator[tuple[int, EncodedBlock]]:
    waiting: deque[tuple[int, Future[EncodedBlock]]] = deque([(source, pool.submit(_encode, source, block))])
    for source, block in rest:
        waiting.append((source, pool.submit(_encode, source, block)))
        if len(waiting) > _BLOCKS_AHEAD * num_workers:
            source, future = waiting.popleft()
            yield source, future.result()
    while waiting:
        source, future = waiting.popleft()
        yield source, future.result()


class _Process(ForkServerProcess):
    """A worker that does not run the program's main module, as multiprocessing has it do.

    What is sent to it says where it is imported from. The main module would cost imports, and a script without a
    guard would tokenize once more in every worker.
    """

    def start(self) -> None:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class _Context(ForkServerContext):
    Process = _Process


def _pool(setup: Setup, encoder: BlockEncoder, num_workers: int) -> ProcessPoolExecutor:
    # Not fork: tokenizers, pyarrow and S3 clients have threads, whose locks a fork would copy as they are.
    context = _Context()
    # What is imported before the fork is imported once.
    context.set_forkserver_preload([__name__, type(setup.tokenizer).__module__])
    # The encoder itself, with the words and templates that it has learned by now.
    return ProcessPoolExecutor(num_workers, context, initializer=_start, initargs=(encoder, os.getpid()))


_encoder: BlockEncoder | None = None


def _start(encoder: BlockEncoder, parent: int) -> None:
    global _encoder
    # A parent that is killed ends no pool, and its workers would wait for ever.
    die_with_ancestor(parent)
    # Ctrl-C reaches the whole group; the parent ends the pool.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Each worker has a core: threads of its own would only take those of others.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder = encoder


def _noop() -> None:
    return None


def _encode(source: int, block: Block) -> EncodedBlock:
    assert _encoder is not None
    return _encoder.encode(source, block)
