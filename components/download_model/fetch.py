"""Taking a model's files from the hub, S3 or a local folder: safetensors, configuration and tokenizer only."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from components.download_model.resume import resume_from_hub, resume_from_s3
from components.download_model.volume import check_room, progress
from training.config import ModelConfig
from training.errors import UserError
from training.hub import hub_errors
from training.model_files import WEIGHTS, WEIGHTS_INDEX, check_folder, no_safetensors, weight_files
from training.model_source import HubModel, S3Folder, small_files, takes_weights
from training.s3_model import objects_below, pinned_objects, s3_revision

_CARD = "README.md"

_AT_ONCE = 8
"""Files that are fetched at the same time."""


def fetch_from_hub(
    source: HubModel,
    model: ModelConfig,
    partial: Path,
    staging: Path,
    check: Callable[[Path], None],
    note: Callable[[str], None],
) -> str | None:
    """Fetch a hub model.

    Args:
        source: The model, at a commit.
        model: The config that names it, and says whether its weights are wanted.
        partial: Folder to download into. It stays, so that a try after a failure goes on from there.
        staging: Where the finished files go; on the same volume.
        check: Called with the folder when the small files are there, before gigabytes follow.
        note: Says something to people.

    Returns:
        The licence that the model's card names.

    Raises:
        UserError: No access, no network, no safetensors, or no room for them.
    """
    from huggingface_hub import HfApi

    assert source.revision is not None
    commit = source.revision
    folder = _folder_of(partial, commit)
    with hub_errors(source.name, commit, "model"):
        info = HfApi().model_info(source.name, revision=commit, files_metadata=True)
        # Not every mirror of the hub says how large a file is.
        sizes = {file.rfilename: file.size for file in info.siblings or []}

        def get(name: str) -> None:
            resume_from_hub(source.name, commit, name, sizes[name], folder / name)

        _take(f"the hub model '{source.name}'", sizes, get, model, folder, staging, check, note)
    return getattr(info.card_data, "license", None)


def fetch_from_s3(
    source: S3Folder,
    model: ModelConfig,
    partial: Path,
    staging: Path,
    check: Callable[[Path], None],
    note: Callable[[str], None],
) -> str | None:
    """Fetch a model from S3.

    Arguments and what is returned are those of `fetch_from_hub`.

    Raises:
        UserError: No access, no network, no safetensors, no room for them, or other objects than the revision's.
    """
    objects = pinned_objects(source.address, source.revision, takes_weights(model))
    folder = _folder_of(partial, s3_revision(objects))
    card = objects_below(source.address).get(_CARD)

    def get(name: str) -> None:
        resume_from_s3(objects[name], folder / name)

    sizes: dict[str, int | None] = {name: found.size for name, found in objects.items()}
    _take(f"'{source.address}'", sizes, get, model, folder, staging, check, note)
    if card is not None:
        resume_from_s3(card, folder / _CARD)
    return _card_licence(folder / _CARD)


def _folder_of(partial: Path, revision: str) -> Path:
    """Where parts of a revision are kept; those of another are removed."""
    folder = partial / revision
    folder.mkdir(parents=True, exist_ok=True)
    for other in partial.iterdir():
        if other == folder:
            continue
        if other.is_dir() and not other.is_symlink():
            shutil.rmtree(other)
        else:  # files of a version that had no folder for each revision
            other.unlink()
    return folder


def _take(
    where: str,
    sizes: Mapping[str, int | None],
    get: Callable[[str], None],
    model: ModelConfig,
    folder: Path,
    staging: Path,
    check: Callable[[Path], None],
    note: Callable[[str], None],
) -> None:
    """Fetch the small files, look at them, fetch the weights that they name, and put all into its place.

    Args:
        where: The model, as a sentence begins.
        sizes: Bytes of its files, where they are known, by their names.
        get: Fetches a file by its name into the folder.
        model: The config.
        folder: Folder to download into.
        staging: Where the finished files go.
        check: Called when the small files are there.
        note: Says something to people.
    """

    def get_all(names: Sequence[str]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            # As a list, so that the first error is raised here.
            list(pool.map(get, names))

    names, with_weights = small_files(model), takes_weights(model)
    get_all([name for name in names if name in sizes])
    if with_weights and WEIGHTS_INDEX not in sizes and WEIGHTS not in sizes:
        raise no_safetensors(where, sizes)
    check(folder)
    weights = [WEIGHTS] if with_weights else []
    if with_weights and WEIGHTS_INDEX in sizes:
        weights = [path.name for path in weight_files(folder)]
        missing = [name for name in weights if name not in sizes]
        if missing:
            raise UserError(
                f"{where} is not whole: {WEIGHTS_INDEX} names {missing[0]}, which is missing. Upload it"
            )
    num_bytes = sum(sizes[name] or 0 for name in weights)
    check_room(folder, num_bytes)
    if weights:
        with progress(folder, num_bytes, note):
            get_all(weights)
    check_folder(folder, with_weights)
    for name in [*names, *weights]:
        if (folder / name).is_file():
            _put(folder / name, staging / name)


def _put(file: Path, target: Path) -> None:
    """Give a file a second name, so that it is still there if publishing it is interrupted."""
    try:
        target.hardlink_to(file)
    except OSError:  # of a volume that has no hard links
        shutil.move(file, target)


def copy_folder(folder: Path, model: ModelConfig, staging: Path) -> str | None:
    """Copy a local model's files, following links, and return the licence that its card names."""
    weights = weight_files(folder) if takes_weights(model) else []
    for path in [*(folder / name for name in small_files(model)), *weights]:
        if path.is_file():
            shutil.copyfile(path, staging / path.name)
    return _card_licence(folder / _CARD)


def _card_licence(card: Path) -> str | None:
    import yaml
    from huggingface_hub import metadata_load

    if not card.is_file():
        return None
    try:
        licence = (metadata_load(card) or {}).get("license")
    except (ValueError, yaml.YAMLError):
        return None  # a README that is not a model card
    return licence if isinstance(licence, str) else None
