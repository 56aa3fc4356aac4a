"""The folder of an exported adapter, as peft writes and reads it."""

from pathlib import Path

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def is_adapter(folder: Path) -> bool:
    """Whether a model folder holds an adapter, which is of use only together with its base model."""
    return (folder / CONFIG).is_file()
