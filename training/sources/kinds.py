"""Which kind of file a name stands for, and which files of a folder are data."""

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Literal

from training.errors import UserError

Kind = Literal["jsonl", "json", "csv", "tsv", "parquet", "arrow", "txt"]
Compression = Literal["gzip", "zstd"]

_KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "txt",
}

_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}

SUPPORTED = f"{', '.join(_KINDS)}, each also as {' or '.join(_COMPRESSIONS)}"
"""The endings that are read, for people."""

_OTHERS = (
    *(".md", ".xlsx", ".xls", ".yaml", ".yml", ".xml", ".html", ".pdf", ".docx", ".pkl", ".pt", ".bin", ".db"),
    *(".bz2", ".xz", ".lz4", ".zip", ".tar", ".tgz", ".7z"),
)
"""Endings that tell a file of a kind that is not read from a hub id, which may have dots too."""

_NO_DATA = ("readme", "license", "licence", "notice", "changelog", "citation", "dataset_info", "dataset_infos")
"""Names, up to the first dot, of files that lie beside data in many a folder."""


def split_name(name: str) -> tuple[Kind, Compression | None] | None:
    """The kind of a file and its compression, by the endings of its name; None for a kind that is not read."""
    path = PurePosixPath(name)
    compression = _COMPRESSIONS.get(path.suffix.lower())
    if compression is not None:
        path = path.with_suffix("")
    kind = _KINDS.get(path.suffix.lower())
    return None if kind is None else (kind, compression)


def looks_like_file(name: str) -> bool:
    """Whether a name that leads nowhere was meant to be a file, not a hub id."""
    return split_name(name) is not None or name.lower().endswith((*_COMPRESSIONS, *_OTHERS))


def is_data(name: str) -> bool:
    """Whether a file of a folder counts: not if it is hidden (`.` or `_` first), a README or a licence.

    Args:
        name: Relative to the folder.
    """
    parts = PurePosixPath(name).parts
    return (
        not any(part.startswith((".", "_")) for part in parts) and parts[-1].lower().split(".")[0] not in _NO_DATA
    )


def one_kind(names: Iterable[str], given: str) -> Kind:
    """The kind that all files are of.

    Args:
        names: Of the files, at least one.
        given: What the user wrote, as a sentence begins: `data.train is 'x'`.

    Raises:
        UserError: They are of several kinds, or of one that is not read.
    """
    examples: dict[str, str] = {}
    for name in names:
        split = split_name(name)
        examples.setdefault(PurePosixPath(name).suffix if split is None else split[0], name)
    if len(examples) > 1:
        raise UserError(
            f"{given}, which holds files of several kinds ({', '.join(list(examples.values())[:4])}): name those "
            "of one kind with a glob such as folder/*.jsonl, or list several sources"
        )
    (name,) = examples.values()
    split = split_name(name)
    if split is None:
        there = "" if given.endswith(f"'{name}'") else f" ({name})"
        raise UserError(f"{given}, a kind of file that is not read{there}: set it to {SUPPORTED}")
    return split[0]
