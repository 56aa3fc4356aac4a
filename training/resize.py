"""A greater vocabulary: embeddings for tokens that a model's files have none for.

The new rows of the input embedding, and of the head where it has weights of its own, are the mean of the old, so
that a new token begins as likely as any.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, PretrainedConfig

from training.shards import local_rows, sum_over_shards

_BYTES_AT_ONCE = 8 * 2**20
"""Memory that reading takes, beside the shards."""


def set_vocabulary(config: PretrainedConfig, num_rows: int) -> None:
    """Let the models that are built from a config have this many rows of embeddings."""
    config.get_text_config().vocab_size = num_rows
    if hasattr(config, "vocab_size"):
        config.vocab_size = num_rows


def grown_weights(
    config: PretrainedConfig,
    folder: Path,
    wanted: Mapping[str, torch.Tensor],
    in_files: Mapping[str, Sequence[int]],
) -> dict[str, torch.Tensor]:
    """The weights that have a row for each token, and more rows in the model than in its files.

    Args:
        config: Of the model.
        folder: The model's files.
        wanted: The model's weights, by their names in the files.
        in_files: The shapes that they have there.
    """
    num_rows = config.get_text_config().vocab_size
    num_before = AutoConfig.from_pretrained(folder).get_text_config().vocab_size
    if num_rows <= num_before:
        return {}
    return {
        name: value
        for name, value in wanted.items()
        if value.shape[0] == num_rows and tuple(in_files[name]) == (num_before, *value.shape[1:])
    }


def read_grown(folder: Path, grown: Mapping[str, torch.Tensor]) -> None:
    """Fill grown weights: each rank reads the old rows that it holds, and all share their mean. Collective.

    Args:
        folder: The model's files.
        grown: From `grown_weights`.
    """
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in sorted(set(file.keys()) & set(grown)):
                _fill(grown[name], file.get_slice(name))


def _fill(value: torch.Tensor, saved: Any) -> None:
    """Fill one weight from the slices of its file."""
    rows, first = local_rows(value)
    num_saved = saved.get_shape()[0]
    end = max(first, min(first + len(rows), num_saved))
    # In fp64, so that the mean is the same at any number of ranks, up to the rounding of what it is stored in.
    total = torch.zeros(value.shape[1:], dtype=torch.float64)
    at_once = max(1, _BYTES_AT_ONCE // (8 * max(1, total.numel())))
    for at in range(first, end, at_once):
        part = saved[at : min(at + at_once, end)]
        rows[at - first : at - first + len(part)].copy_(part)
        total += part.double().sum(0)
    mean = sum_over_shards(total, value) / num_saved
    rows[end - first :].copy_(mean.expand_as(rows[end - first :]))
