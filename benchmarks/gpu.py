"""Tokens a second, TFLOP/s and MFU of a Llama-shaped model on one GPU: `python -m benchmarks.gpu`.

The engine's own functions build and train it, from random weights on random tokens, in one process. The exit code
is 2 where there is no GPU.
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from transformers import LlamaConfig

from training import optim
from training.build import build_model
from training.config import RunConfig
from training.data import PackedSample, collate, num_supervised, num_tokens, squared_lengths
from training.device import collective_backend, peak_memory_bytes
from training.flops import ModelFlops
from training.head import SummedLoss
from training.initialize import init_weights
from training.model import num_parameters
from training.peaks import device_name, peak_tflops
from training.precision import resolve_precision

EXIT_NO_GPU = 2

_SEED = 1

_BYTES_PER_PARAMETER = 16
"""fp32 weights, gradients and AdamW's two moments."""

_SHARE_FOR_STATE = 0.5
"""Of the free memory; the rest is for activations and the gathered weights."""


@dataclass(frozen=True)
class Shape:
    """A Llama, as published models of its size are shaped."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int = 128_256

    @property
    def parameters(self) -> int:
        """Of the decoder's matrices, the embedding and the head."""
        attention = self.hidden * self.hidden * (2 + 2 * self.kv_heads / self.heads)
        return int(
            self.layers * (attention + 3 * self.hidden * self.intermediate) + 2 * self.hidden * self.vocabulary
        )


SHAPES = {
    "tiny": Shape(64, 128, 2, 4, 2, vocabulary=256),
    "1b": Shape(2048, 8192, 16, 32, 8),
    "3b": Shape(3072, 8192, 28, 24, 8),
    "8b": Shape(4096, 14_336, 32, 32, 8),
}
"""By ascending size."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    given = _parser().parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA GPU on this machine, so nothing was measured", file=sys.stderr)
        return EXIT_NO_GPU
    device = torch.device(given.device, 0) if given.device == "cuda" else torch.device("cpu")
    name = given.model or fitting_shape(torch.cuda.mem_get_info(device)[0])
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, _one_rank(device, Path(folder)):
        _measure(given, name, device, Path(folder))
    return 0


def fitting_shape(free_bytes: int) -> str:
    """The largest shape whose training state leaves room for the rest."""
    room = free_bytes * _SHARE_FOR_STATE / _BYTES_PER_PARAMETER
    return [name for name, shape in SHAPES.items() if shape.parameters <= room or name == "tiny"][-1]


def _measure(given: argparse.Namespace, name: str, device: torch.device, folder: Path) -> None:
    shape = SHAPES[name]
    config = _run_config(given, shape)
    _llama(shape, given.sequence_length).save_pretrained(folder)
    compute = resolve_precision(given.precision, device)
    model = build_model(config, folder, device, compute)
    init_weights(model, _SEED)
    optimizer = optim.make_optimizer(model, config.training)
    loss, flops = SummedLoss(model), ModelFlops.of(model)
    assert flops is not None
    samples = _samples(given, shape)
    batch, supervised = collate(samples, device), num_supervised(samples)
    operations = flops.of_batch(num_tokens(samples), supervised, squared_lengths(samples))

    def step() -> None:
        (loss(batch) / supervised).backward()
        optim.clip_gradients(model, config.training.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    taken = [_seconds(step, device) for _ in range(given.warmup + given.steps)][given.warmup :]
    precision = "float8" if given.float8 != "none" else str(compute).removeprefix("torch.")
    peak = peak_tflops(device_name(device), precision)
    middle = statistics.median(taken)
    rate = operations / middle / 1e12
    print(f"device            {device_name(device) or device.type}")
    print(f"model             {name}, {num_parameters(model):,} parameters, {precision}")
    print(f"step_s            {middle:.4g} ({min(taken):.4g}..{max(taken):.4g})")
    print(f"tokens_per_s      {num_tokens(samples) / middle:.4g}")
    print(f"tflops            {rate:.4g}")
    print(f"mfu               {f'{rate / peak:.1%}' if peak else 'not known: no published peak for this device'}")
    print(f"peak_memory_gib   {peak_memory_bytes(device) / 2**30:.4g}")


def _seconds(step: Callable[[], None], device: torch.device) -> float:
    started = time.perf_counter()
    step()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - started


def _samples(given: argparse.Namespace, shape: Shape) -> list[PackedSample]:
    """Full samples of random tokens, each of several documents."""
    rng = np.random.default_rng(_SEED)
    length = given.sequence_length
    parts = np.array_split(np.arange(length), given.documents)
    samples = []
    for _ in range(given.batch_size):
        ids = rng.integers(0, shape.vocabulary, length + 1, dtype=np.int32)
        lengths = np.asarray([len(part) for part in parts], np.int32)
        samples.append(PackedSample(ids[:-1], ids[1:].copy(), lengths))
    return samples


def _run_config(given: argparse.Namespace, shape: Shape) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"name": "benchmarks/llama", "attention": given.attention, "init": "random"},
            "data": {"train": "random.jsonl", "sequence_length": given.sequence_length},
            "training": {
                "precision": given.precision,
                "compile": given.compile,
                "activation_checkpointing": given.activation_checkpointing,
                "float8": given.float8,
                "optimizer_state": given.optimizer_state,
                "micro_batch_size": given.batch_size,
                "global_batch_size": given.batch_size,
                "seed": _SEED,
            },
        }
    )


def _llama(shape: Shape, sequence_length: int) -> LlamaConfig:
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocabulary,
        max_position_embeddings=sequence_length,
    )


@contextlib.contextmanager
def _one_rank(device: torch.device, folder: Path) -> Iterator[None]:
    """A process group of this process alone: the engine's functions are collective."""
    os.environ.setdefault("LOCAL_WORLD_SIZE", "1")
    store = dist.FileStore(str(folder / "rendezvous"), 1)
    dist.init_process_group(collective_backend(device), store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu is for trying the script")
    parser.add_argument("--model", choices=list(SHAPES), help="unset: the largest that fits the free memory")
    parser.add_argument("--sequence-length", type=int, default=4096, help="tokens in a sample")
    parser.add_argument("--documents", type=int, default=1, help="documents in a sample, of equal lengths")
    parser.add_argument("--batch-size", type=int, default=2, help="samples in a step")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16", help="of the passes")
    parser.add_argument("--float8", choices=["none", "tensorwise", "rowwise"], default="none", help="scaling")
    parser.add_argument(
        "--activation-checkpointing", choices=["none", "selective", "full"], default="none", help="as in a run"
    )
    parser.add_argument("--optimizer-state", choices=["fp32", "bf16", "8bit"], default="fp32", help="as in a run")
    parser.add_argument("--attention", default="auto", help="model.attention of a run")
    parser.add_argument("--compile", action="store_true", help="compile each decoder layer")
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them")
    return parser


if __name__ == "__main__":
    sys.exit(main())
