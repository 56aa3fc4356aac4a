"""Where rows come from: a JSONL file, or a data set on the Hugging Face hub."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from training.config import DataConfig
from training.errors import UserError
from training.hub import hub_errors, is_hub_id, look_up, one_line, pin_repo
from training.store import checksum

_SUPPORTED = "a .jsonl file (one JSON object a line, UTF-8), or the id of a Hugging Face hub data set (org/name)"

_OTHER_FILES = (
    *(".json", ".csv", ".tsv", ".parquet", ".arrow", ".txt", ".md", ".xlsx", ".yaml", ".yml", ".ndjson"),
    *(".gz", ".zst", ".bz2", ".xz", ".zip", ".tar"),
)
"""Endings that tell a file that is missing or not supported from a hub id, which may have dots too."""

_PROJECT = Path(__file__).resolve().parents[1]


class Row(NamedTuple):
    """A row, and where it stands for people to find it."""

    origin: str
    values: dict[str, Any]


@dataclass(frozen=True)
class JsonlFile:
    """Rows of a JSONL file.

    Attributes:
        path: The file.
        name: As the user wrote it.
        content: SHA-256 of the file.
    """

    path: Path
    name: str
    content: str

    @property
    def revision(self) -> str:
        """What pins the content, for people."""
        return f"sha256:{self.content}"

    def rows(self) -> Iterator[Row]:
        """The rows, in the order of the file; empty lines are passed over.

        Raises:
            UserError: A line is not UTF-8 or not a JSON object, or there are no rows.
        """
        number = 0
        empty = True
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                empty = False
                origin = f"{self.name} line {number}"
                yield Row(origin, _parse(line, origin))
        if empty:
            raise UserError(
                f"{self.name} is empty{f' ({number} blank lines)' if number else ''}: it needs one JSON object a "
                "line"
            )


@dataclass(frozen=True)
class HubDataset:
    """Rows of one split of a hub data set.

    Attributes:
        name: Hub id.
        split: Name of the split.
        commit: Commit that it is pinned to.
    """

    name: str
    split: str
    commit: str

    @property
    def content(self) -> str:
        """What pins the content."""
        return f"{self.name}@{self.commit}/{self.split}"

    @property
    def revision(self) -> str:
        """What pins the content, for people."""
        return self.commit

    def rows(self) -> Iterator[Row]:
        """The rows, in the order of the split.

        Raises:
            UserError: The data set cannot be loaded, or the split has no rows.
        """
        dataset = self._load()
        if not len(dataset):
            raise UserError(f"the split '{self.split}' of the data set '{self.name}' has no rows")
        for number, values in enumerate(dataset, start=1):
            yield Row(f"{self.name} split {self.split} row {number}", values)

    def _load(self) -> Any:
        look_up(self.name, self.commit, "dataset")
        import datasets
        from datasets.exceptions import DatasetGenerationError, DatasetsError

        try:
            with hub_errors(self.name, self.commit, "dataset"):
                return datasets.load_dataset(self.name, split=self.split, revision=self.commit)
        except UserError:
            raise
        except DatasetGenerationError as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from error  # a full disk, for example
            raise UserError(self._refusal(error)) from error
        except (DatasetsError, ValueError, RuntimeError) as error:
            raise UserError(self._refusal(error)) from error

    def _refusal(self, error: Exception) -> str:
        return (
            f"the split '{self.split}' of the data set '{self.name}' cannot be loaded: "
            f"{one_line(error)}. Set data.train and data.train_split to a data set in JSON, CSV or "
            "Parquet, or save it as a .jsonl file"
        )


Source = JsonlFile | HubDataset


def open_train(data: DataConfig) -> Source:
    """Find `data.train`; its content is not read beyond a checksum.

    Raises:
        UserError: It is missing, of a kind that is not supported, or on a hub that refuses or cannot be reached.
    """
    path = _find(data.train)
    looks_like_file = data.train.endswith((".jsonl", *_OTHER_FILES))
    if path is None and not looks_like_file and is_hub_id(data.train):
        commit = pin_repo(data.train, data.revision, "dataset")
        return HubDataset(data.train, data.train_split, commit)
    if data.revision is not None:
        raise UserError(
            f"data.revision is '{data.revision}', but data.train '{data.train}' is not a hub data set, so it has "
            "no revisions: set data.revision to null"
        )
    return _open_file(data.train, path, "data.train", _SUPPORTED)


def open_heldout(data: DataConfig) -> JsonlFile | None:
    """Find `data.heldout`; None if it is unset.

    Raises:
        UserError: It is missing or not a JSONL file.
    """
    if data.heldout is None:
        return None
    return _open_file(data.heldout, _find(data.heldout), "data.heldout", "a .jsonl file, or null")


def _open_file(name: str, path: Path | None, field: str, supported: str) -> JsonlFile:
    if path is None:
        places = "" if Path(name).expanduser().is_absolute() else f" in {Path.cwd()} nor in {_PROJECT}"
        raise UserError(f"{field} is '{name}', which does not exist{places}: set it to {supported}")
    if path.is_dir():
        raise UserError(f"{field} is '{name}', which is a folder: set it to {supported}")
    if path.suffix != ".jsonl":
        raise UserError(f"{field} is '{name}', a kind of file that is not read: set it to {supported}")
    try:
        return JsonlFile(path, name, checksum(path))
    except PermissionError:
        raise UserError(f"{field} is '{name}', which this user may not read") from None


def _find(name: str) -> Path | None:
    """A path that exists: from the working folder, or else from the project, so that its own data is found."""
    path = Path(name).expanduser()
    return next((place for place in (path, _PROJECT / path) if place.exists()), None)


def _parse(line: bytes, origin: str) -> dict[str, Any]:
    try:
        # utf-8-sig, as editors on Windows put a byte order mark at the beginning.
        values = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UserError(f"{origin} is not UTF-8: save the file in this encoding") from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"{origin} is not valid JSON ({error.msg} at character {error.pos + 1}): each line has to be one JSON "
            "object"
        ) from None
    except ValueError:
        # All else that is no error of JSON: Python bounds the digits of an integer.
        raise UserError(f"{origin} has a number of too many digits: write it as a string") from None
    except RecursionError:
        raise UserError(f"{origin} is nested too deeply: flatten its arrays and objects") from None
    if not isinstance(values, dict):
        raise UserError(f"{origin} is a JSON {_JSON_NAMES[type(values)]}: each line has to be one JSON object")
    return values


_JSON_NAMES = {
    list: "array",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
