"""Peak memory of tokenizing and packing, all processes together, as the data grows."""

import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.corpus import write_corpus
from benchmarks.figure import Figure
from benchmarks.options import Options
from benchmarks.tokenize import saved_tokenizer

_SMALL, _LARGE = 100_000_000, 2_000_000_000
"""Bytes of text."""


def measure(options: Options) -> list[Figure]:
    """Tokenize both, once each: it takes minutes, and memory does not hang on what else runs."""
    small, large = (_peak(options.store, num_bytes) for num_bytes in (_SMALL, _LARGE))
    return [
        Figure("tokenize_memory.small_mib", [small / 2**20]),
        Figure("tokenize_memory.large_mib", [large / 2**20]),
        Figure("tokenize_memory.large_over_small", [large / small], at_most=1.1),
    ]


def _peak(store: Path, num_bytes: int) -> int:
    """The most resident bytes of the process and all below it, looked at every few hundredths of a second."""
    rows = store / "tokenize" / f"text-{num_bytes}.jsonl"
    write_corpus(rows, "text", num_bytes)
    command = [
        sys.executable,
        "-m",
        "benchmarks.tokenize_side",
        "ours",
        "text",
        str(rows),
        str(saved_tokenizer(store)),
    ]
    most = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, resident(process.pid))
            time.sleep(0.05)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return most


def resident(pid: int) -> int:
    """Resident bytes of a process and all below it; pages that several share count for each."""
    total = 0
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
