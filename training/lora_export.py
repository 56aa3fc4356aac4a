"""The two forms of a model that was trained with adapters: the adapters alone, or added to the base's weights."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from training.adapter_folder import CONFIG, WEIGHTS
from training.config import ModelConfig
from training.lora import adapter_weights, name_in_peft, names_of_adapters
from training.model import read_weights, weights, write_weights
from training.shards import local_rows


def export_adapter(model: PreTrainedModel, folder: Path, dtype: torch.dtype, base: ModelConfig) -> None:
    """Write the adapters as `PeftModel.from_pretrained(base, folder)` loads them. Collective.

    Args:
        model: The trained model.
        folder: An empty folder, which rank 0 writes to.
        dtype: Of the written adapters.
        base: The run's section; the base model is written down as it was given there, since a path in the store
            means nothing elsewhere.
    """
    is_leader = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    gathered = {}
    # One at a time, so that the other ranks never hold more than one whole.
    for name, value in adapter_weights(model).items():
        whole = _whole(value)
        if is_leader:
            gathered[name_in_peft(name)] = whole.to("cpu", dtype).contiguous()
    if is_leader:
        # By way of bytes: safetensors' own files can be read by their owner only.
        (folder / WEIGHTS).write_bytes(save(gathered, metadata={"format": "pt"}))
        (folder / CONFIG).write_text(json.dumps(_description(model, base), indent=2) + "\n", encoding="utf-8")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def export_merged(model: PreTrainedModel, source: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write a whole model, as `export_weights` does, with the adapters added to its weights. Collective.

    Args:
        model: The trained model.
        source: The published folder of the base model.
        folder: An empty folder that all ranks see.
        dtype: Of the written weights.
    """
    write_weights({name: value.to(dtype) for name, value in merged_weights(model, source).items()}, folder)


def merged_weights(model: PreTrainedModel, source: Path) -> dict[str, torch.Tensor]:
    """The base model's weights with the adapters added, in the adapters' dtype, sharded as the model. Collective.

    The base is read anew: training computed with a copy that was rounded to the compute dtype, and what has no
    adapter should leave as it came.

    Args:
        model: The trained model.
        source: The published folder of the base model.
    """
    adapters = adapter_weights(model)
    exact = next(iter(adapters.values())).dtype
    merged = {name: torch.empty_like(value, dtype=exact) for name, value in weights(model).items()}
    read_weights(model, source, merged)
    for name, value in merged.items():
        name_a, name_b = names_of_adapters(name)
        if name_a not in adapters:
            continue
        module = model.get_submodule(name.rpartition(".")[0])
        left, right = _whole(adapters[name_b]), _whole(adapters[name_a])
        if module.fan_in_fan_out:
            left, right = right.t(), left.t()
        # Both are small; of their product, which is as large as the weight, a rank computes its own rows.
        rows, first = local_rows(value)
        rows += (module.scaling["default"] * left[first : first + len(rows)] @ right).to(rows.device)
    return merged


def _description(model: PreTrainedModel, base: ModelConfig) -> dict[str, Any]:
    """What peft has to know of the adapters."""
    description: dict[str, Any] = model.peft_config["default"].to_dict()
    return {
        **description,
        # A local folder by its full path, for whoever loads it from somewhere else.
        "base_model_name_or_path": str(Path(base.name).absolute()) if Path(base.name).is_dir() else base.name,
        "revision": base.revision,
        # It is a set, whose order differs from process to process.
        "target_modules": sorted(description["target_modules"]),
        # For those who load it: as it is, or to put another adapter beside it.
        "inference_mode": True,
        "init_lora_weights": True,
    }


def _whole(value: torch.Tensor) -> torch.Tensor:
    if not isinstance(value, DTensor):
        return value
    # Shards that are offloaded to the host are gathered by the accelerator's back end.
    return value.to(value.device_mesh.device_type).full_tensor()
