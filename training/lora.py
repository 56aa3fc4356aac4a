"""Low-rank adapters beside a frozen model.

peft puts them into the modules, so that what is trained here is what peft loads. This file adds what a sharded
model needs: which modules get one, their dtype, their first values, and their names. An adapted module `q_proj`
has the weights

    q_proj.base_layer.weight        frozen, [out, in] ([in, out] for GPT-2's Conv1D)
    q_proj.lora_A.default.weight    [rank, in]
    q_proj.lora_B.default.weight    [out, rank]

and computes `base_layer(x) + alpha / rank * B A x`.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from training.config import LoraConfig
from training.errors import UserError
from training.initialize import draw_blocks
from training.sharding import decoder_layers
from training.shards import local_rows

ALL = "all-linear"

_BASE, _A, _B = ".base_layer.", ".lora_A.default.", ".lora_B.default."

_Value = TypeVar("_Value")


def add_adapters(model: PreTrainedModel, lora: LoraConfig, dtype: torch.dtype) -> None:
    """Freeze a model and put adapters beside its linear modules, in place.

    Args:
        model: On the meta device, in the dtype that the base computes in: frozen weights need no masters.
        lora: The run's section; `target_modules` are names of linear modules in the decoder layers.
        dtype: Of the adapters: the master dtype.

    Raises:
        UserError: A target module is not there.
    """
    # Here, because it takes seconds, and a run without adapters does without.
    from peft import inject_adapter_in_model

    names = _target_names(model, lora.target_modules)
    inject_adapter_in_model(_peft_config(model, lora, names), model, low_cpu_mem_usage=True)
    for name in names:
        adapted = model.get_submodule(name)
        adapted.lora_A.to(dtype)
        adapted.lora_B.to(dtype)


def init_adapters(model: PreTrainedModel, seed: int) -> None:
    """Give adapters their first values: A uniform as a linear layer's weight, B zero, so that nothing changes yet.

    They depend on the seed and the matrix' name only, and not on the number of ranks.

    Args:
        model: Materialised; without adapters nothing is done.
        seed: `training.seed`.
    """
    for name, value in adapter_weights(model).items():
        if _A in name:
            # What peft draws as well: uniform by Kaiming's rule with a = √5.
            bound = 1 / math.sqrt(value.shape[1])
            draw_blocks(value, f"{seed} {name}", functools.partial(_draw_uniform, bound=bound))
        else:
            local_rows(value)[0].zero_()


def adapter_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """The adapters by their names in the state dict; empty for a model that has none."""
    return {name: value for name, value in model.state_dict().items() if _is_adapter(name)}


def without_adapters(state: Mapping[str, _Value]) -> dict[str, _Value]:
    """The part of a state dict that the base model has, under the base model's names."""
    return {name.replace(_BASE, "."): value for name, value in state.items() if not _is_adapter(name)}


def names_of_adapters(base_name: str) -> tuple[str, str]:
    """The names of A and B beside the base model's weight `base_name`, whether it has any or not."""
    module, _, weight = base_name.rpartition(".")
    return f"{module}{_A}{weight}", f"{module}{_B}{weight}"


def name_in_peft(name: str) -> str:
    """The name that peft's files have for an adapter."""
    return f"base_model.model.{name.replace('.default.', '.')}"


def _draw_uniform(block: torch.Tensor, generator: torch.Generator, bound: float) -> None:
    block.uniform_(-bound, bound, generator=generator)


def _is_adapter(name: str) -> bool:
    return _A in name or _B in name


def _target_names(model: PreTrainedModel, targets: tuple[str, ...]) -> list[str]:
    """Full names of the modules that get an adapter, in order."""
    linear = [
        f"{layer_name}.{name}"
        for layer_name, layer in decoder_layers(model)
        for name, module in layer.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
    ]
    unknown = [target for target in targets if target != ALL and not any(_matches(n, target) for n in linear)]
    if unknown or not targets:
        there = sorted({name.rpartition(".")[2] for name in linear})
        raise UserError(
            f"lora.target_modules names {', '.join(unknown) or 'nothing'}, but the linear modules in the decoder "
            f"layers of {type(model).__name__} are {', '.join(there)}: choose among them, or {ALL} for all"
        )
    return [name for name in linear if any(target == ALL or _matches(name, target) for target in targets)]


def _matches(name: str, target: str) -> bool:
    # As peft matches: whole parts at the end.
    return f".{name}".endswith(f".{target}")


def _peft_config(model: PreTrainedModel, lora: LoraConfig, names: list[str]) -> Any:
    from peft import LoraConfig as PeftConfig

    short = sorted({name.rpartition(".")[2] for name in names})
    matched = [name for name, _ in model.named_modules() if any(_matches(name, target) for target in short)]
    is_transposed = isinstance(model.get_submodule(names[0]), Conv1D)
    return PeftConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        # A whole number is written as one, which every reader of the file takes.
        lora_alpha=int(lora.alpha) if lora.alpha.is_integer() else lora.alpha,
        lora_dropout=lora.dropout,
        # Short names, which people read; where they would match outside the decoder layers too, full ones.
        target_modules=short if matched == names else names,
        fan_in_fan_out=is_transposed,
        # Drawn later, when there is memory; see `init_adapters`.
        init_lora_weights=False,
    )
