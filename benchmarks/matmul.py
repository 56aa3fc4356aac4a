"""A training step's rate, against the rate at which the machine multiplies matrices of the same shapes.

What is counted is what the step cannot do without: six operations per weight and token in the linear layers of the
decoder, and six per weight of the head and supervised token. Attention, norms, the optimizer and collectives are
in the step's time, but not in its operations.
"""

import json
import sys
from collections import Counter
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.engine import median_seconds, on_ranks, repetitions, seconds, train_steps, trainer_of
from benchmarks.figure import Figure
from benchmarks.options import Options
from benchmarks.workload import quickstart_work
from training.data import PackedSample, num_supervised, num_tokens
from training.precision import resolve_precision
from training.run_folder import RunFolder
from training.sharding import decoder_layers
from training.trainer import Trainer

_RESULT = "matmul.json"
_STEPS = 2
_TIMES = 5

Product = tuple[int, int, int]
"""A linear layer's use: rows of its input, outputs, inputs."""


def measure(options: Options) -> list[Figure]:
    """Time steps and products in turn."""
    work = quickstart_work(options.store, _STEPS)
    rounds = on_ranks("benchmarks.matmul", work, options, lambda path: json.loads((path / _RESULT).read_text()))
    prefix = f"matmul.{options.precision}"
    return [
        Figure(f"{prefix}.products_gflops_per_rank", [each["products"] / 1e9 for each in rounds]),
        Figure(f"{prefix}.step_gflops_per_rank", [each["step"] / 1e9 for each in rounds]),
        Figure(f"{prefix}.share", [each["step"] / each["products"] for each in rounds], at_least=0.60),
    ]


def main(run_folder: str) -> None:
    """A rank's part."""
    folder = RunFolder.at(run_folder)
    with trainer_of(folder) as trainer:
        # Before a step, while the sizes of all parameters can be asked for.
        products = step_products(trainer.model, _mean_rows(trainer))
        needed = operations(products)
        dtype = resolve_precision(trainer.config.training.precision, trainer.device)
        train_steps(trainer, 0, _STEPS)
        rounds = []
        for _ in range(repetitions()):
            step = needed * _STEPS / seconds(lambda: train_steps(trainer, 0, _STEPS))
            # All ranks at once, as in the step: they share the memory's bandwidth and the clock.
            dist.barrier()
            alone = torch.tensor(products_rate(products, dtype))
            dist.all_reduce(alone)
            rounds.append({"step": step, "products": alone.item() / dist.get_world_size()})
        if dist.get_rank() == 0:
            (folder.path / _RESULT).write_text(json.dumps(rounds))


def step_products(model: nn.Module, rows: tuple[int, int]) -> Counter[Product]:
    """Every linear layer's use in a step of one rank, by shape, with how often it occurs.

    Args:
        model: A transformers causal language model.
        rows: Tokens, and supervised tokens.
    """
    tokens, supervised = rows
    products: Counter[Product] = Counter()
    for _, layer in decoder_layers(model):
        for module in layer.modules():
            if isinstance(module, nn.Linear):
                products[tokens, module.out_features, module.in_features] += 1
    head = model.get_output_embeddings()
    products[supervised, head.out_features, head.in_features] += 1
    return products


def operations(products: Counter[Product]) -> float:
    """Of forward and backward passes: a product, and one each for the gradients of input and weight."""
    return sum(6.0 * rows * outputs * inputs * times for (rows, outputs, inputs), times in products.items())


def products_rate(products: Counter[Product], dtype: torch.dtype) -> float:
    """Operations a second of the products alone, each shape as often as a step has it."""
    taken = 0.0
    for (rows, outputs, inputs), times in products.items():
        value, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
        gradient = torch.randn(rows, outputs).to(dtype)
        pairs = ((value, weight.t()), (gradient, weight), (gradient.t(), value))
        taken += times * sum(median_seconds(partial(torch.mm, a, b), _TIMES) for a, b in pairs)
    return operations(products) / taken


def _mean_rows(trainer: Trainer) -> tuple[int, int]:
    """Tokens and supervised tokens of a rank's step, on average over the run."""
    samples: list[PackedSample] = [trainer.dataset[index] for index in range(len(trainer.dataset))]
    return round(num_tokens(samples) / len(samples)), round(num_supervised(samples) / len(samples))


if __name__ == "__main__":
    main(sys.argv[1])
