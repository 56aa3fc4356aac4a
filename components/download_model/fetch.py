"""Taking a model's files from the hub or from a local folder: safetensors, configuration and tokenizer only."""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from training.config import ModelConfig
from training.errors import UserError
from training.hub import hub_errors
from training.model_source import (
    WEIGHTS,
    WEIGHTS_INDEX,
    HubModel,
    check_folder,
    no_safetensors,
    small_files,
    takes_weights,
    weight_files,
)

_PROGRESS_EVERY_S = 30.0


def fetch(
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
        partial: Folder to download into. It outlives a failure, so that the next try goes on from there.
        staging: Where the finished files go; on the same volume.
        check: Called with the folder when the small files are there, before gigabytes follow.
        note: Says something to people.

    Returns:
        The licence that the model's card names.

    Raises:
        UserError: No access, no network, no safetensors, or no room for them.
    """
    from huggingface_hub import HfApi, snapshot_download

    names, with_weights = small_files(model), takes_weights(model)
    with hub_errors(source.name, source.revision, "model"):
        info = HfApi().model_info(source.name, revision=source.revision, files_metadata=True)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}

        def get(files: list[str]) -> None:
            snapshot_download(source.name, revision=source.revision, local_dir=partial, allow_patterns=files)

        get([name for name in names if name in sizes])
        if with_weights and WEIGHTS_INDEX not in sizes and WEIGHTS not in sizes:
            raise no_safetensors(f"the hub model '{source.name}'", sizes)
        check(partial)
        weights = [WEIGHTS] if with_weights else []
        if with_weights and WEIGHTS_INDEX in sizes:
            weights = [path.name for path in weight_files(partial)]
        num_bytes = sum(sizes.get(name, 0) for name in weights)
        _check_room(partial, num_bytes)
        if weights:
            with _progress(partial, num_bytes, note):
                get(weights)
    check_folder(partial, with_weights)
    for name in [*names, *weights]:
        if (partial / name).is_file():
            shutil.move(partial / name, staging / name)
    shutil.rmtree(partial)
    return getattr(info.card_data, "license", None)


def copy_folder(folder: Path, model: ModelConfig, staging: Path) -> str | None:
    """Copy a local model's files, following links, and return the licence that its card names."""
    weights = weight_files(folder) if takes_weights(model) else []
    for path in [*(folder / name for name in small_files(model)), *weights]:
        if path.is_file():
            shutil.copyfile(path, staging / path.name)
    return _card_licence(folder / "README.md")


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


def _check_room(folder: Path, num_bytes: int) -> None:
    there = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free = shutil.disk_usage(folder).free
    if num_bytes - there > free:
        raise UserError(
            f"the model's weights are {num_bytes / 1e9:.1f} GB, but the volume of the store has "
            f"{free / 1e9:.1f} GB free: free some space or choose another store"
        )


@contextlib.contextmanager
def _progress(folder: Path, num_bytes: int, note: Callable[[str], None]) -> Iterator[None]:
    """Say now and then how far a download is; the hub's own bars are made for terminals."""
    done = threading.Event()
    started = time.monotonic()

    def report() -> None:
        while not done.wait(_PROGRESS_EVERY_S):
            with contextlib.suppress(FileNotFoundError):  # a file was renamed while it was counted
                there = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                note(f"{there / 1e9:.1f} of {num_bytes / 1e9:.1f} GB after {time.monotonic() - started:.0f} s")

    thread = threading.Thread(target=report, daemon=True)
    note(f"downloading {num_bytes / 1e9:.2f} GB of weights")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
