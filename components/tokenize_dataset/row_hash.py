"""What a row is known by: a hash of what documents are made from, under names that all sources share."""

import hashlib
import json
from collections.abc import Mapping

import numpy as np

from training.config import ColumnRole
from training.sources.rows import Row

_as_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str).encode


def row_hash(row: Row, columns: Mapping[ColumnRole, str]) -> bytes:
    """128 bits of a row's used columns.

    Args:
        row: The row.
        columns: Its columns by what they are for, so that the same content is equal in columns of other names.
    """
    used = {role: row.values.get(column) for role, column in columns.items()}
    return hashlib.blake2b(_as_json(used).encode(), digest_size=16).digest()


def falls_below(half: np.ndarray, fraction: float) -> np.ndarray:
    """Which of uniform hashes, uint64 [rows], are among a share of them; a larger share has the smaller's too."""
    return half.astype(np.float64) < fraction * 2.0**64
