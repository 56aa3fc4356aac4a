"""From a GGUF file to a model that can be trained."""

import importlib.metadata
from pathlib import Path

from training.config import ModelConfig
from training.errors import UserError
from training.hub import one_line
from training.model_source import GgufFile, check_gguf_packages, load_tokenizer, takes_weights


def convert(source: GgufFile, model: ModelConfig, staging: Path) -> str | None:
    """Dequantize a GGUF file, and write weights in bf16, configuration and tokenizer.

    Args:
        source: The file.
        model: The config that names it, and says whether its weights are wanted.
        staging: Where the files go.

    Returns:
        The licence of the Python package that the file is part of.

    Raises:
        UserError: transformers cannot read this file.
    """
    check_gguf_packages()
    try:
        if takes_weights(model):
            _convert_weights(source.path, staging)
        else:
            _convert_config(source.path, staging)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UserError(
            f"'{source.path.name}' cannot be converted: {one_line(error)}. Set model.name to the "
            "model in safetensors, or to a GGUF file of an architecture that transformers converts"
        ) from error
    load_tokenizer(model).save_pretrained(staging)
    for path in staging.iterdir():
        # safetensors makes its files readable by their owner alone; a store is read by others too.
        path.chmod(0o644)
    return None if source.package is None else _package_licence(source.package)


def _convert_weights(file: Path, staging: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    # Without dequantize=True the weights stay in blocks, which can be neither saved nor trained.
    network = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    network.to(torch.bfloat16).save_pretrained(staging)


def _convert_config(file: Path, staging: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    # As with weights.
    config.architectures = [AutoModelForCausalLM._model_mapping[type(config)].__name__]
    config.dtype = "bfloat16"
    config.save_pretrained(staging)


def _package_licence(package: str) -> str | None:
    try:
        fields = importlib.metadata.metadata(package).json
    except importlib.metadata.PackageNotFoundError:
        return None  # the distribution has another name than its package
    licence = fields.get("license_expression") or fields.get("license")
    return licence if isinstance(licence, str) else None
