"""Which rows are trained on and which are held out."""

import hashlib
import json
from collections.abc import Iterator

from training.config import DataConfig
from training.data_source import JsonlFile, Row, Source
from training.errors import UserError


def used_columns(data: DataConfig) -> tuple[str, ...]:
    """The columns that documents are made from, under `data.format`."""
    return {
        "chat": (data.messages_column,),
        "prompt_completion": (data.prompt_column, data.completion_column),
        "text": (data.text_column,),
    }[data.format]


class Split:
    """The rows of a run, divided.

    A row is known by a hash of its used columns. Without a held-out file this hash alone decides, so a row stays
    on its side when others are added, and equal rows are always on the same side. With a held-out file, rows
    that are in it too are dropped from training.

    Args:
        data: The config.
        train: Rows to train on.
        heldout: Rows to evaluate on; None holds out `data.heldout_fraction` of `train`.

    Attributes:
        num_leaked_dropped: Rows dropped from training because they are held out; complete when `train_rows` was
            read to its end.
    """

    def __init__(self, data: DataConfig, train: Source, heldout: JsonlFile | None) -> None:
        self._data = data
        self._train = train
        self._heldout = heldout
        self._columns = used_columns(data)
        self._heldout_hashes: set[bytes] = set()
        self.num_leaked_dropped = 0

    def heldout_rows(self) -> Iterator[Row]:
        """The held-out rows; read them to the end before `train_rows`.

        Raises:
            UserError: There are none.
        """
        num_rows = 0
        for row in (self._heldout or self._train).rows():
            num_rows += 1
            digest = row_hash(row, self._columns)
            if self._heldout is not None or _falls_below(digest, self._data.heldout_fraction):
                self._heldout_hashes.add(digest)
                yield row
        if not self._heldout_hashes:
            raise UserError(
                f"data.heldout_fraction {self._data.heldout_fraction:g} of the {num_rows} rows of "
                f"{self._data.train} holds out none: raise it, or set data.heldout to a file"
            )

    def train_rows(self) -> Iterator[Row]:
        """The first `data.max_train_rows` rows that are not held out.

        Raises:
            UserError: There are none.
        """
        num_rows = 0
        for row in self._train.rows():
            if num_rows == self._data.max_train_rows:
                return
            if row_hash(row, self._columns) in self._heldout_hashes:
                self.num_leaked_dropped += self._heldout is not None
                continue
            num_rows += 1
            yield row
        if not num_rows:
            raise UserError(
                f"no row of {self._data.train} is left to train on, as all are held out: "
                + ("lower data.heldout_fraction" if self._heldout is None else "set data.heldout to other rows")
            )


def row_hash(row: Row, columns: tuple[str, ...]) -> bytes:
    """SHA-256 of a row's used columns as canonical JSON."""
    used = [row.values.get(column) for column in columns]
    text = json.dumps(used, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).digest()


def _falls_below(digest: bytes, fraction: float) -> bool:
    return int.from_bytes(digest[:8], "big") < fraction * 2**64
