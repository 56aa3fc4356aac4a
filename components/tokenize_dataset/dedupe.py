"""Finding equal rows by their hashes, in parts that fit into memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from components.tokenize_dataset.spool import Spool

_ROWS_OF_A_PART = 1 << 18
"""Rows of a part, about; each takes some 100 bytes."""

_MOST_PARTS = 512
"""Files that are open at once."""

_ENTRY = np.dtype([("hash", "<u8", 2), ("row", "<u8")])


class EqualRows(NamedTuple):
    """Some rows, grouped by their hash: equal rows are all in the same part.

    Attributes:
        row: uint64 [rows]; their numbers, ascending within a group.
        hash: uint64 [rows, 2].
        group: int64 [rows]; counted from 0, ascending.
    """

    row: np.ndarray
    hash: np.ndarray
    group: np.ndarray


def equal_rows(spool: Spool, folder: Path) -> Iterator[EqualRows]:
    """Go through all rows of all sources, group by group.

    Args:
        spool: Closed.
        folder: Holds the hashes, dealt out to files, while this runs.
    """
    num_parts = min(max(1, -(-spool.num_rows // _ROWS_OF_A_PART)), _MOST_PARTS)
    paths = [folder / f"hashes-{number}" for number in range(num_parts)]
    _deal_out(spool, paths)
    for path in paths:
        entries = np.fromfile(path, _ENTRY)
        path.unlink()
        if not len(entries):
            continue
        entries = entries[np.lexsort((entries["row"], entries["hash"][:, 1], entries["hash"][:, 0]))]
        starts = np.ones(len(entries), bool)
        starts[1:] = (entries["hash"][1:] != entries["hash"][:-1]).any(axis=1)
        yield EqualRows(entries["row"], entries["hash"], np.cumsum(starts) - 1)


def _deal_out(spool: Spool, paths: list[Path]) -> None:
    files = [path.open("wb") for path in paths]
    try:
        for source in range(spool.num_sources):
            for first, rows in spool.rows(source):
                entries = np.empty(len(rows), _ENTRY)
                entries["hash"] = rows["hash"]
                entries["row"] = np.arange(first, first + len(rows))
                part = rows["hash"][:, 1] % np.uint64(len(paths))
                order = np.argsort(part, kind="stable")
                ends = np.cumsum(np.bincount(part.astype(np.int64), minlength=len(paths)))
                for file, entries_of_part in zip(files, np.split(entries[order], ends[:-1]), strict=True):
                    file.write(entries_of_part.data)
    finally:
        for file in files:
            file.close()
