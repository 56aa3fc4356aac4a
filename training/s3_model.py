"""A model in S3: which objects it is made of, and what pins them."""

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from training.errors import UserError
from training.model_files import SMALL_FILES, WEIGHTS, WEIGHTS_INDEX, check_names, no_safetensors
from training.s3 import SCHEME, S3Object, changed, list_objects, s3_errors
from training.store import fingerprint
from training.user_cache import user_cache


def pinned_objects(address: str, revision: str | None, with_weights: bool) -> dict[str, S3Object]:
    """The objects of a model that can be taken, by name: configuration, tokenizer and, if wanted, safetensors.

    Args:
        address: `s3://bucket/folder`.
        revision: What `s3_revision` gave for them; None takes them as they are.
        with_weights: Whether weights are wanted.

    Raises:
        UserError: There is no whole model, it is not that of the revision, or S3 cannot be looked at.
    """
    there = objects_below(address)
    if not there:
        raise UserError(
            f"model.name is '{address}', where there is nothing: set it to the folder that holds config.json, "
            "with the capitals of its key"
        )
    objects = {
        name: found
        for name, found in there.items()
        if name in SMALL_FILES or (with_weights and name.endswith(".safetensors"))
    }
    if not with_weights:
        # An index of weights that are not there would say that they are missing.
        objects.pop(WEIGHTS_INDEX, None)
    elif WEIGHTS not in objects and WEIGHTS_INDEX not in objects:
        raise no_safetensors(f"'{address}'", there)
    check_names(f"'{address}'", objects)
    if revision is not None and revision != s3_revision(objects):
        raise changed(address)
    return objects


def objects_below(address: str) -> dict[str, S3Object]:
    """The objects in a folder by their names, without those of folders in it."""
    start = len(address.removeprefix(SCHEME)) + 1
    names = {found.path[start:]: found for found in list_objects(address)}
    return {name: found for name, found in names.items() if name and "/" not in name}


def s3_revision(objects: Mapping[str, S3Object]) -> str:
    """What changes with any of the objects, by their ETags: `etags-` and 16 hex digits."""
    return f"etags-{fingerprint(etags={name: [found.size, found.etag] for name, found in objects.items()})}"


def is_s3_revision(revision: str) -> bool:
    """Whether a text has the form of what `s3_revision` gives."""
    return re.fullmatch(r"etags-[0-9a-f]{16}", revision) is not None


def small_folder(objects: Mapping[str, S3Object]) -> Path:
    """A folder in the user's cache with copies of small objects.

    Raises:
        UserError: One cannot be read.
    """
    folder = user_cache("s3") / s3_revision(objects)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        staging = Path(name) / "staging"
        staging.mkdir()
        for part, found in objects.items():
            with s3_errors(found.address), found.open() as stream, (staging / part).open("wb") as file:
                shutil.copyfileobj(stream, file)
        try:
            staging.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was first, otherwise
                raise
    return folder
