"""What lies where in the folder of a model version.

    MLmodel, requirements.txt, …   MLflow's
    components/tokenizer/          the tokenizer, as MLflow's flavor transformers loads it
    model/                         a whole model: safetensors, config.json, tokenizer
    peft/                          or an adapter: adapter_config.json, adapter_model.safetensors, tokenizer

Versions of the first Shardline had the model's files at the top.
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from training.adapter_folder import CONFIG, WEIGHTS
from training.model_files import SMALL_FILES

MODEL = "model"
ADAPTER = "peft"
MLMODEL = "MLmodel"

_SMALL = {*SMALL_FILES, CONFIG, WEIGHTS}


def inner_folder(folder: Path) -> Path:
    """The folder of the model itself."""
    return next((folder / name for name in (MODEL, ADAPTER) if (folder / name).is_dir()), folder)


def wanted_files(files: Mapping[str, int]) -> dict[str, int]:
    """Of a version's files those that make up its model: safetensors, configuration and tokenizer.

    Args:
        files: Paths in the version's folder, and sizes in bytes.
    """
    tops = {PurePosixPath(path).parts[0] for path in files if "/" in path}
    inner = next((name for name in (MODEL, ADAPTER) if name in tops), "")
    own = {path: size for path, size in files.items() if str(PurePosixPath(path).parent) == (inner or ".")}
    taken = {path: size for path, size in own.items() if _is_taken(PurePosixPath(path).name)}
    return taken if any(path.endswith(".safetensors") for path in taken) else {}


def _is_taken(name: str) -> bool:
    return name in _SMALL or name.endswith(".safetensors")
