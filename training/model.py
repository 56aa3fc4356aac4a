"""The model on a rank: built without memory, loaded by slices, exported without ever being whole in one place."""

import contextlib
import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint._consolidate_hf_safetensors import (
    consolidate_safetensors_files_on_every_rank,
)
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from training.attention import choose_attention
from training.dcp_errors import plain_errors
from training.errors import UserError
from training.lora import adapter_weights, without_adapters
from training.resize import grown_weights, read_grown, set_vocabulary

_MAX_FILE_BYTES = 5 * 2**30
"""Bytes in one exported safetensors file, as on the hub."""


def build_on_meta(
    folder: Path, attention: str, dtype: torch.dtype, num_rows: int | None = None
) -> PreTrainedModel:
    """The model's modules with parameters that have shapes but no memory.

    Args:
        folder: Holds config.json.
        attention: `model.attention` of the run.
        dtype: Of the parameters.
        num_rows: Tokens that it has embeddings for, see `training.vocabulary`. None: as the folder says.
    """
    config = AutoConfig.from_pretrained(folder)
    if num_rows is not None:
        set_vocabulary(config, num_rows)
    config.use_cache = False
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, attn_implementation=choose_attention(attention, config), dtype=dtype
        )
    model.tie_weights()
    model.train()
    return model


def materialize(model: PreTrainedModel, device: torch.device, *, cpu_offload: bool = False) -> None:
    """Give a meta model memory for this rank's shards, and its computed buffers their values.

    Args:
        model: On the meta device.
        device: Where it computes.
        cpu_offload: Keep the shards in host memory; buffers are on the device all the same.
    """
    model.to_empty(device="cpu" if cpu_offload else device)
    if cpu_offload:
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))
    # to_empty parts tied weights, where FSDP does not hold them together.
    model.tie_weights()
    # Buffers that no checkpoint holds, such as rotary frequencies, are garbage after to_empty. transformers sets
    # them in the same hook that initialises weights, module by module.
    owners = {name.rpartition(".")[0] for name, _ in model.named_non_persistent_buffers()}
    with torch.no_grad():
        for owner in sorted(owners):
            model._init_weights(model.get_submodule(owner))


def load_weights(model: PreTrainedModel, folder: Path) -> None:
    """Fill a materialised model from safetensors; every rank reads the slices that it holds, and no more.

    Args:
        model: Sharded or not.
        folder: A published model folder.

    Raises:
        UserError: The folder lacks weights of this architecture.
    """
    read_weights(model, folder, weights(model))


def read_weights(model: PreTrainedModel, folder: Path, wanted: dict[str, torch.Tensor]) -> None:
    """Fill tensors from safetensors, each rank its slices.

    Args:
        model: Whose architecture names the weights.
        folder: A published model folder.
        wanted: Weights by the names of `weights`; they need not be the model's own.

    Raises:
        UserError: The folder lacks some, or has them in other shapes.
    """
    reader = HuggingFaceStorageReader(str(folder))
    shapes = {name: entry.size for name, entry in reader.read_metadata().state_dict_metadata.items()}
    in_files = set(shapes)
    state = {_name_in_files(name, in_files, model.base_model_prefix): value for name, value in wanted.items()}
    missing = sorted(set(state) - in_files)
    if missing:
        raise UserError(
            f"the model in {folder} lacks {len(missing)} weights of {type(model).__name__}, {missing[0]} first: "
            "its files belong to another architecture, or use a layout that is not supported"
        )
    grown = grown_weights(model.config, folder, state, shapes)
    as_saved = {name: value for name, value in state.items() if name not in grown}
    for name, value in as_saved.items():
        if tuple(shapes[name]) != tuple(value.shape):
            raise UserError(
                f"the model in {folder} has {name} of the shape {list(shapes[name])}, but by its config.json it "
                f"is {list(value.shape)}: its files do not belong together, so download or copy it again"
            )
    with _quiet_dcp(), plain_errors():
        dcp.load(as_saved, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=not _is_distributed())
    read_grown(folder, grown)


def weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The model's state dict with every tied weight once, under the name that its source has; no adapters."""
    tied = set(model.all_tied_weights_keys)
    return {name: value for name, value in without_adapters(model.state_dict()).items() if name not in tied}


def trainable_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """What training changes: the adapters alone where there are any, or all weights."""
    return adapter_weights(model) or weights(model)


def export_weights(model: PreTrainedModel, folder: Path, dtype: torch.dtype) -> None:
    """Write safetensors that `AutoModelForCausalLM.from_pretrained` loads. Collective: every rank calls it.

    Each rank writes its shards, then the ranks share the work of joining them file by file.

    Args:
        model: The trained model.
        folder: An empty folder that all ranks see.
        dtype: Of the written weights.
    """
    write_weights({name: value.detach().to(dtype) for name, value in weights(model).items()}, folder)


def write_weights(state: dict[str, torch.Tensor], folder: Path) -> None:
    """Write weights as `export_weights` does. Collective.

    Args:
        state: Sharded or whole, by name.
        folder: An empty folder that all ranks see.
    """
    files = _assign_files(state)
    shards = folder / "shards"
    with _quiet_dcp(), plain_errors():
        dcp.save(
            state,
            storage_writer=HuggingFaceStorageWriter(
                str(shards), fqn_to_index_mapping=files, save_distributed=True
            ),
            no_dist=not _is_distributed(),
        )
        # By relative paths, because torch looks for the shards by a glob, in which [ and * have a meaning.
        with contextlib.chdir(folder):
            consolidate_safetensors_files_on_every_rank(shards.name, ".", files, num_threads=1)
    if _is_distributed():
        torch.distributed.barrier()
    if not _is_distributed() or torch.distributed.get_rank() == 0:
        _check_files(folder, state)
        _write_index(folder, state, files)
        shutil.rmtree(shards)
    if _is_distributed():
        torch.distributed.barrier()


def copy_companions(source: Path, target: Path, dtype: torch.dtype, num_rows: int | None = None) -> None:
    """Copy what belongs to a model beside its weights: config, tokenizer, chat template, generation config.

    Args:
        source: The model that was trained.
        target: Holds the weights.
        dtype: Of the weights.
        num_rows: Tokens that the model has embeddings for. None: as many as before.
    """
    for path in sorted(source.iterdir()):
        is_weights = path.suffix == ".safetensors" or path.name == "model.safetensors.index.json"
        if path.is_file() and not is_weights and path.name != "manifest.json":
            shutil.copyfile(path, target / path.name)
    config = json.loads((target / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    if num_rows is not None:
        config.get("text_config", config)["vocab_size"] = num_rows
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def source_dtype(folder: Path) -> torch.dtype:
    """The dtype that a model folder's config declares; fp32 where it declares none."""
    config = json.loads((folder / "config.json").read_text())
    name = config.get("dtype") or config.get("torch_dtype") or "float32"
    dtype = getattr(torch, name, None)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def num_parameters(model: nn.Module) -> int:
    """Parameters in the whole model, tied ones once."""
    return sum(p.numel() for p in model.parameters())


def num_trainable(model: nn.Module) -> int:
    """Parameters in the whole model that training changes."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _name_in_files(name: str, in_files: set[str], prefix: str) -> str:
    # Files that were saved from the base model alone, as GPT-2's, lack its prefix.
    bare = name.removeprefix(f"{prefix}.")
    return bare if name not in in_files and bare in in_files else name


def _assign_files(state: dict[str, torch.Tensor]) -> dict[str, int]:
    """Number the output file of every weight, filling files in order up to `_MAX_FILE_BYTES`."""
    files, number, size = {}, 1, 0
    for name, value in state.items():
        num_bytes = value.numel() * value.element_size()
        if size and size + num_bytes > _MAX_FILE_BYTES:
            number, size = number + 1, 0
        files[name] = number
        size += num_bytes
    return files


def _check_files(folder: Path, state: dict[str, torch.Tensor]) -> None:
    """Make sure, before anything that the export replaces is removed, that every weight is there, whole."""
    found: dict[str, tuple[int, ...]] = {}
    for path in folder.glob("*.safetensors"):
        # Opening checks that the file is as long as its header says.
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            found |= {name: tuple(file.get_slice(name).get_shape()) for name in names}
    wrong = [name for name, value in state.items() if found.get(name) != tuple(value.shape)]
    if wrong:
        raise RuntimeError(
            f"the exported model lacks {len(wrong)} weights, {wrong[0]} first; nothing was replaced"
        )


def _write_index(folder: Path, state: dict[str, torch.Tensor], files: dict[str, int]) -> None:
    count = max(files.values())
    index = {
        "metadata": {"total_size": sum(v.numel() * v.element_size() for v in state.values())},
        "weight_map": {name: f"model-{n:05d}-of-{count:05d}.safetensors" for name, n in files.items()},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


@contextlib.contextmanager
def _quiet_dcp() -> Iterator[None]:
    """Leave out torch's warnings that it saves or loads in one process, which is what was asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")
        yield
