"""Which files of a folder are data, and which of them are those of a split."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from training.errors import UserError
from training.sources.file import File
from training.sources.kinds import SUPPORTED, is_data
from training.sources.split_names import split_of

_MAX_BYTES = 2**24
"""Size of what `datasets` writes about a data set. A larger file of the same name is data."""


class Chosen(NamedTuple):
    """Files to read.

    Attributes:
        files: In their order.
        split: The split that they are of; None where there are no splits.
    """

    files: list[File]
    split: str | None


def choose(name: str, files: Mapping[str, File], split: str) -> Chosen:
    """The files of a folder that are data.

    Of a folder that `datasets` saved they are those that it lists. In any other, such as a copy of a data set of
    the hub, names can tell splits: `train-00000-of-00002.parquet`, `test.jsonl`, `dev/a.csv`. Where they tell of
    several, only the files of the one that is asked for are taken, so that nothing is trained on that is there
    for a test.

    Args:
        name: Of the folder.
        files: By their paths in it.
        split: The split to take, where there are several.

    Raises:
        UserError: There is no data, no such split, files of splits beside others, or less than was saved.
    """
    splits = _written_by_datasets(files, "dataset_dict.json", "splits")
    if splits is not None:
        _check_split(name, split, splits)
        inside = {
            part.removeprefix(f"{split}/"): file for part, file in files.items() if part.startswith(f"{split}/")
        }
        return Chosen(_saved(name, inside) or list(_data(name, inside).values()), split)
    saved = _saved(name, files)
    return Chosen(saved, None) if saved else _by_names(name, _data(name, files), split)


def _by_names(name: str, files: Mapping[str, File], split: str) -> Chosen:
    told = {part: split_of(part) for part in files}
    splits = sorted({found for found in told.values() if found is not None})
    others = [part for part, found in told.items() if found is None]
    if len(splits) < 2:
        return Chosen(list(files.values()), split if splits == [split] and not others else None)
    if others:
        raise UserError(
            f"'{name}' holds files of the splits {', '.join(splits)}, and others beside them ({others[0]}): name "
            "those to read with a glob such as folder/train*"
        )
    _check_split(name, split, splits)
    return Chosen([file for part, file in files.items() if told[part] == split], split)


def _check_split(name: str, split: str, splits: list[str]) -> None:
    if split not in splits:
        raise UserError(
            f"'{name}' has no split '{split}': choose one of {', '.join(splits)}, or name its files with a glob"
        )


def _data(name: str, files: Mapping[str, File]) -> dict[str, File]:
    found = {part: file for part, file in sorted(files.items()) if is_data(part)}
    if not found:
        raise UserError(f"'{name}' is a folder without data: put files into it ({SUPPORTED})")
    return found


def _saved(name: str, files: Mapping[str, File]) -> list[File] | None:
    """The files of a data set that `datasets` saved; results of its cache may lie beside them."""
    entries = _written_by_datasets(files, "state.json", "_data_files")
    if entries is None:
        return None
    parts = [entry["filename"] for entry in entries]
    if missing := [part for part in parts if part not in files]:
        raise UserError(f"'{name}' is not whole: state.json names {missing[0]}, which is missing. Save it again")
    return [files[part] for part in parts]


def _written_by_datasets(files: Mapping[str, File], part: str, key: str) -> list[Any] | None:
    """What stands under a key in a file of `datasets`; None if there is no such file, or it is something else."""
    file = files.get(part)
    if file is None or file.size > _MAX_BYTES:
        return None
    with file.open() as stream:
        try:
            content = json.load(stream)
        except ValueError:
            return None
    found = content.get(key) if isinstance(content, dict) else None
    return found if isinstance(found, list) else None
