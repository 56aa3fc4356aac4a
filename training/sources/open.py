"""From the names in `data` to sources that can be read."""

from typing import Literal

from training.config import DataConfig, DataSource
from training.errors import UserError
from training.hub import is_hub_id, pin_repo
from training.s3 import SCHEME
from training.sources.file_source import FileSource
from training.sources.hub_dataset import HubDataset
from training.sources.kinds import SUPPORTED, looks_like_file, one_kind
from training.sources.places import find_files, local_path, where_looked
from training.sources.rows import Source


def open_train(data: DataConfig) -> tuple[Source, ...]:
    """Find the sources of `data.train`; nothing is read but checksums, listings and commits.

    Raises:
        UserError: One is missing, of a kind that is not read, or in a place that refuses or cannot be reached; or
            a revision, subset or split is set that is of no effect.
    """
    _check_settings_of_hub(data)
    opened = tuple(_open(source, "data.train", data.streaming) for source in data.train_sources)
    _check_splits(data, "train", data.train, opened)
    return opened


def open_heldout(data: DataConfig) -> tuple[Source, ...]:
    """Find the sources of `data.heldout` likewise; empty if it is unset.

    Raises:
        UserError: As `open_train`.
    """
    opened = tuple(_open(source, "data.heldout", data.streaming) for source in data.heldout_sources)
    _check_splits(data, "heldout", data.heldout, opened)
    return opened


def _open(source: DataSource, field: str, streaming: bool) -> FileSource | HubDataset:
    given = f"{field} is '{source.source}'"
    name = source.name or source.source
    assert source.split is not None
    if _is_on_hub(source):
        commit = pin_repo(source.source, source.revision, "dataset")
        return HubDataset(name, source.source, commit, source.subset, source.split, streaming)
    chosen = find_files(source.source, source.split)
    if chosen is None:
        raise UserError(
            f"{given}, which does not exist{where_looked(source.source)}: set it to a file ({SUPPORTED}), a "
            f"folder or a glob of them, the same at {SCHEME}BUCKET/KEY, or the id of a Hugging Face hub data set "
            "(org/name)"
        )
    kind = one_kind([file.name for file in chosen.files], given)
    return FileSource(name, kind, tuple(chosen.files), chosen.split)


def _is_on_hub(source: DataSource) -> bool:
    """Whether a source is a hub data set. A file or folder of its name comes before it."""
    return is_hub_id(source.source) and not looks_like_file(source.source) and local_path(source.source) is None


def _check_settings_of_hub(data: DataConfig) -> None:
    sources = (*data.train_sources, *data.heldout_sources)
    own = (*_own_sources(data.train), *_own_sources(data.heldout))
    for source in own:
        for setting, value in (("revision", source.revision), ("subset", source.subset)):
            if value is not None and not _is_on_hub(source):
                raise _of_no_effect(setting, value, source.source)
    for setting, value in (("revision", data.revision), ("subset", data.subset)):
        if value is not None and not any(_is_on_hub(source) for source in sources):
            raise _of_no_effect(setting, value, data.train_name)


def _check_splits(
    data: DataConfig,
    field: Literal["train", "heldout"],
    given: str | tuple[DataSource, ...] | None,
    opened: tuple[FileSource | HubDataset, ...],
) -> None:
    own = _own_sources(given)
    for source, found in zip(own, opened[: len(own)], strict=True):
        if source.split is not None and found.split is None:
            raise UserError(
                f"the split of '{source.source}' is '{source.split}', but it is neither a hub data set nor a "
                "folder with files of several splits: leave the split out"
            )
    setting = f"{field}_split"
    split = getattr(data, setting)
    is_default = split == DataConfig.model_fields[setting].default
    if opened and not is_default and not any(found.split == split for found in opened):
        raise UserError(
            f"data.{setting} is '{split}', but data.{field} is neither a hub data set nor a folder with files of "
            f"several splits: leave data.{setting} out"
        )


def _own_sources(given: str | tuple[DataSource, ...] | None) -> tuple[DataSource, ...]:
    return given if isinstance(given, tuple) else ()


def _of_no_effect(setting: str, value: str, name: str) -> UserError:
    return UserError(
        f"data.{setting} is '{value}', but '{name}' is not a hub data set, so it has no {setting}s: set "
        f"data.{setting} to null"
    )
