"""Which rows are trained on, which are held out, and which are dropped."""

from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

import numpy as np

from components.tokenize_dataset.dedupe import EqualRows, equal_rows
from components.tokenize_dataset.row_hash import falls_below
from components.tokenize_dataset.spool import Spool, array_on_disk
from training.config import DataConfig
from training.errors import UserError


class Fate(IntEnum):
    """What becomes of a row."""

    TRAIN = 1
    HELDOUT = 2
    DUPLICATE = 3
    LEAKED = 4


def split(spool: Spool, data: DataConfig, names: Sequence[str], first_heldout: int, folder: Path) -> np.ndarray:
    """Decide on every row.

    A row is known by its hash alone, so equal rows are on the same side, and a row stays on its side when others
    are added. Without held-out sources, the rows whose hash is below `data.heldout_fraction` are held out; of a
    source that has none of them, the row with the smallest hash. With held-out sources, rows that are in them too
    are dropped from training.

    Args:
        spool: All sources, those to train on first.
        data: The config.
        names: Of the sources, for errors.
        first_heldout: Sources from this number on are for evaluation; as many as there are sources for none.
        folder: For what is kept on disk.

    Returns:
        `Fate` uint8 [rows of all sources], mapped from a file.

    Raises:
        UserError: Nothing is left to train on, in all or of a source, or nothing is held out.
    """
    if not spool.num_rows:
        raise UserError(
            f"{' + '.join(names)}: there are no rows that can be used, so there is nothing to train on"
        )
    fates = array_on_disk(folder / "fates", np.uint8, spool.num_rows)
    first_heldout_row = (
        spool.range_of(first_heldout).start if first_heldout < spool.num_sources else spool.num_rows
    )
    for rows in equal_rows(spool, folder):
        fates[rows.row] = _fates(rows, data, first_heldout_row)
    if data.heldout is None:
        _hold_out_of_each(spool, data, fates)
    _check(spool, data, names, first_heldout, fates)
    return fates


def count(spool: Spool, fates: np.ndarray, source: int, fate: Fate) -> int:
    """A source's rows of one fate."""
    extent = spool.range_of(source)
    return int((fates[extent.start : extent.stop] == fate).sum())


def _fates(rows: EqualRows, data: DataConfig, first_heldout_row: int) -> np.ndarray:
    for_evaluation = rows.row >= first_heldout_row
    leaks = np.bincount(rows.group, weights=for_evaluation) > 0
    fates = np.where(falls_below(rows.hash[:, 0], data.heldout_fraction), Fate.HELDOUT, Fate.TRAIN)
    if data.heldout is not None:
        fates = np.where(for_evaluation, Fate.HELDOUT, np.where(leaks[rows.group], Fate.LEAKED, Fate.TRAIN))
    if data.deduplicate:
        # In a group, rows to train on stand before those to evaluate on.
        again = np.zeros(len(fates), bool)
        again[1:] = (rows.group[1:] == rows.group[:-1]) & (for_evaluation[1:] == for_evaluation[:-1])
        fates[again & (fates != Fate.LEAKED)] = Fate.DUPLICATE
    return fates


def _hold_out_of_each(spool: Spool, data: DataConfig, fates: np.ndarray) -> None:
    """Of each source that has none held out, and two rows to choose from, hold out that of the smallest hash."""
    if not data.heldout_fraction:
        return
    smallest = []
    for source in range(spool.num_sources):
        if count(spool, fates, source, Fate.HELDOUT):
            continue
        hashes = [
            tuple(map(int, rows["hash"][place]))
            for first, rows in spool.rows(source)
            for place in _ends(rows["hash"], fates[first : first + len(rows)] == Fate.TRAIN)
        ]
        if hashes and min(hashes) != max(hashes):
            smallest.append(min(hashes))
    if not smallest:
        return
    for source in range(spool.num_sources):
        for first, rows in spool.rows(source):
            part = fates[first : first + len(rows)]
            for one, other in smallest:
                equal = (rows["hash"][:, 0] == one) & (rows["hash"][:, 1] == other)
                part[equal & (part == Fate.TRAIN)] = Fate.HELDOUT


def _ends(hashes: np.ndarray, chosen: np.ndarray) -> list[int]:
    """Places of the smallest and the largest of the chosen hashes."""
    (places,) = np.nonzero(chosen)
    if not len(places):
        return []
    order = np.lexsort((hashes[places, 1], hashes[places, 0]))
    return [int(places[order[0]]), int(places[order[-1]])]


def _check(spool: Spool, data: DataConfig, names: Sequence[str], first_heldout: int, fates: np.ndarray) -> None:
    num_heldout = sum(count(spool, fates, source, Fate.HELDOUT) for source in range(spool.num_sources))
    for source in range(first_heldout):
        if not count(spool, fates, source, Fate.TRAIN):
            raise UserError(_nothing_left(spool, data, names, source, fates))
    if not num_heldout:
        reason = (
            "data.heldout_fraction is 0: raise it"
            if not data.heldout_fraction and data.heldout is None
            else f"there are only {spool.num_rows:,} rows, all the same or one of each source: "
            + ("add rows" if data.max_train_rows is None else "raise data.max_train_rows, or add rows")
        )
        raise UserError(
            f"{' + '.join(names)}: no row is held out for evaluation, as {reason}, or set data.heldout"
        )


def _nothing_left(spool: Spool, data: DataConfig, names: Sequence[str], source: int, fates: np.ndarray) -> str:
    total = len(spool.range_of(source))
    if not total:
        return f"no row of {names[source]} can be used: mend it, or leave it out of data.train"
    reasons = {
        "held out": count(spool, fates, source, Fate.HELDOUT),
        "in data.heldout too": count(spool, fates, source, Fate.LEAKED),
        "the same as earlier ones": count(spool, fates, source, Fate.DUPLICATE),
    }
    told = ", ".join(f"{number:,} {reason}" for reason, number in reasons.items() if number)
    remedy = (
        "lower data.heldout_fraction, or add rows" if data.heldout is None else "set data.heldout to other rows"
    )
    if reasons["the same as earlier ones"] == total:
        remedy = "leave it out of data.train, or set data.deduplicate to false"
    return f"no row of {names[source]} is left to train on (of {total:,}: {told}): {remedy}"
