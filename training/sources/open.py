"""From the names in `data` to sources that can be read."""

from training.config import DataConfig, DataSource
from training.errors import UserError
from training.hub import is_hub_id, pin_repo
from training.s3 import SCHEME
from training.sources.file_source import FileSource
from training.sources.hub_dataset import HubDataset
from training.sources.kinds import SUPPORTED, looks_like_file, one_kind
from training.sources.places import find_files, where_looked
from training.sources.rows import Source


def open_train(data: DataConfig) -> tuple[Source, ...]:
    """Find the sources of `data.train`; nothing is read but checksums, listings and commits.

    Raises:
        UserError: One is missing, of a kind that is not read, or in a place that refuses or cannot be reached; or
            a revision or subset is set that is of no effect.
    """
    _check_settings_of_hub(data)
    return tuple(_open(source, "data.train", data.streaming) for source in data.train_sources)


def open_heldout(data: DataConfig) -> tuple[Source, ...]:
    """Find the sources of `data.heldout` likewise; empty if it is unset.

    Raises:
        UserError: As `open_train`.
    """
    return tuple(_open(source, "data.heldout", data.streaming) for source in data.heldout_sources)


def is_on_hub(source: DataSource) -> bool:
    """Whether a source is a hub data set. A file or folder of its name comes before it."""
    return (
        is_hub_id(source.source)
        and not looks_like_file(source.source)
        and find_files(source.source, source.split) is None
    )


def _open(source: DataSource, field: str, streaming: bool) -> Source:
    given = f"{field} is '{source.source}'"
    name = source.name or source.source
    if is_on_hub(source):
        commit = pin_repo(source.source, source.revision, "dataset")
        assert source.split is not None
        return HubDataset(name, source.source, commit, source.subset, source.split, streaming)
    files = find_files(source.source, source.split)
    if not files:
        raise UserError(
            f"{given}, which does not exist{where_looked(source.source)}: set it to a file ({SUPPORTED}), a "
            f"folder or a glob of them, the same at {SCHEME}BUCKET/KEY, or the id of a Hugging Face hub data set "
            "(org/name)"
        )
    return FileSource(name, one_kind([file.name for file in files], given), tuple(files))


def _check_settings_of_hub(data: DataConfig) -> None:
    sources = (*data.train_sources, *data.heldout_sources)
    own = (*_own_sources(data.train), *_own_sources(data.heldout))
    for source in own:
        for setting, value in (("revision", source.revision), ("subset", source.subset)):
            if value is not None and not is_on_hub(source):
                raise _of_no_effect(setting, value, source.source)
    for setting, value in (("revision", data.revision), ("subset", data.subset)):
        if value is not None and not any(is_on_hub(source) for source in sources):
            raise _of_no_effect(setting, value, data.train_name)


def _own_sources(given: str | tuple[DataSource, ...] | None) -> tuple[DataSource, ...]:
    return given if isinstance(given, tuple) else ()


def _of_no_effect(setting: str, value: str, name: str) -> UserError:
    return UserError(
        f"data.{setting} is '{value}', but '{name}' is not a hub data set, so it has no {setting}s: set "
        f"data.{setting} to null"
    )
