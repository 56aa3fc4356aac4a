"""The folder of an exported adapter, as peft writes and reads it."""

from pathlib import Path

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def has_model(folder: Path) -> bool:
    """Whether a folder holds an exported model, whole or as an adapter."""
    return (folder / "config.json").is_file() or is_adapter(folder)


def is_adapter(folder: Path) -> bool:
    """Whether a model folder holds an adapter, which is of use only together with its base model."""
    return (folder / CONFIG).is_file()
