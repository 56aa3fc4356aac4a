"""A model for measuring, whole on every rank or sharded over all of them."""

from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import safe_open
from transformers import GenerationConfig, PreTrainedModel

from training.adapter_folder import WEIGHTS, is_adapter
from training.config import ParallelConfig
from training.errors import UserError
from training.host_collectives import use_shared_memory
from training.initialize import init_weights
from training.lora import adapter_weights, name_in_peft
from training.measure.request import Subject
from training.measure.settings import Settings
from training.model import build_on_meta, load_weights, materialize
from training.sharding import make_mesh, shard_model
from training.shards import local_rows
from training.store import about
from training.vocabulary import embedding_rows


def build_bare(subject: Subject, dataset: Path, settings: Settings) -> PreTrainedModel:
    """The modules of a model, with adapters if it has any, on the meta device.

    Args:
        subject: The model.
        dataset: The published data set.
        settings: How to measure.
    """
    num_rows = None
    if subject.name == "base" and settings.resize_vocabulary:
        num_rows = embedding_rows(about(subject.folder), about(dataset), resize=True)
    model = build_on_meta(_whole_folder(subject), settings.attention, settings.dtype, num_rows)
    if is_adapter(subject.folder):
        _add_adapters(model, subject.folder, settings.dtype)
    return model


def load_model(
    model: PreTrainedModel, subject: Subject, settings: Settings, *, is_sharded: bool
) -> PreTrainedModel:
    """Give a bare model its values, by the code that training gives it them. Collective.

    Args:
        model: From `build_bare`; changed in place.
        subject: The model.
        settings: How to measure.
        is_sharded: Over all ranks, as the strategy FULL_SHARD does.

    Raises:
        UserError: The folder's files do not fit its architecture.
    """
    device, folder = settings.device, _whole_folder(subject)
    if is_sharded:
        world_size = dist.get_world_size()
        mesh = make_mesh(ParallelConfig(strategy="FULL_SHARD"), device, world_size, world_size)
        shard_model(model, mesh, "FULL_SHARD", settings.dtype)
    materialize(model, device)
    if is_sharded and device.type == "cpu" and dist.get_world_size() > 1:
        use_shared_memory(model, mesh["shard"].get_group())
    if subject.name == "base" and settings.seed_of_weights is not None:
        init_weights(model, settings.seed_of_weights)
    else:
        load_weights(model, folder)
    if is_adapter(subject.folder):
        _load_adapters(model, subject.folder)
    if (folder / "generation_config.json").is_file():
        # Answers end at the tokens that it names.
        model.generation_config = GenerationConfig.from_pretrained(folder)
    model.config.use_cache = True
    return model.eval()


def num_bytes(model: PreTrainedModel) -> int:
    """What the parameters take, whole."""
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def _whole_folder(subject: Subject) -> Path:
    """The folder with the config and, of an adapter, its base model's weights."""
    if not is_adapter(subject.folder):
        return subject.folder
    assert subject.base_folder is not None, "an adapter without its base model"
    return subject.base_folder


def _add_adapters(model: PreTrainedModel, folder: Path, dtype: torch.dtype) -> None:
    # Here, because it takes seconds, and a whole model does without.
    from peft import PeftConfig, inject_adapter_in_model

    config = PeftConfig.from_pretrained(str(folder))
    # Or nothing would take a gradient, by which sharding tells the dtype of what is trained.
    config.inference_mode = False
    inject_adapter_in_model(config, model, low_cpu_mem_usage=True)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.to(dtype)


def _load_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Fill adapters from their file, each rank its rows; the file is small, and read whole matrix by matrix."""
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        names = set(file.keys())
        for name, value in adapter_weights(model).items():
            in_file = name_in_peft(name)
            if in_file not in names:
                raise UserError(f"the adapter in {folder} lacks {in_file}: its files do not belong together")
            whole = file.get_tensor(in_file)
            rows, first = local_rows(value)
            rows.copy_(whole[first : first + len(rows)])
