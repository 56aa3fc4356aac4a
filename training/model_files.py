"""The files that a model is made of, and which of them are taken."""

import json
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

from training.errors import UserError

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

VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)
"""Files without one of which there is no tokenizer."""

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5")


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
    weights = weight_files(folder) if with_weights else []
    missing = [path.name for path in weights if not path.is_file()]
    if missing:
        raise UserError(
            f"'{folder}' is not a whole model: {WEIGHTS_INDEX} names {', '.join(missing[:3])}"
            f"{' and others' * (len(missing) > 3)}, which are missing. Copy or download it again"
        )
    check_names(f"'{folder}'", [path.name for path in folder.iterdir()])


def check_names(where: str, names: Collection[str]) -> None:
    """Check that configuration and tokenizer are among the files of a model.

    Args:
        where: The model, as a sentence begins.
        names: Of its files.

    Raises:
        UserError: Names what is missing.
    """
    if "config.json" not in names:
        raise UserError(
            f"{where} has no config.json, so it is not a model that transformers can load: set model.name "
            "to a folder that save_pretrained wrote"
        )
    if not any(name in names for name in VOCABULARIES):
        raise UserError(
            f"{where} has no tokenizer (tokenizer.json): save the model's tokenizer into it with save_pretrained"
        )
