"""What the tests of sources share."""

import gzip

import zstandard

from training.config import DataConfig
from training.sources.open import open_train
from training.sources.rows import Malformed, Row, rows_of

COMPRESS = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}


def source_of(train, **data):
    (source,) = open_train(DataConfig(train=str(train), **data))
    return source


def read(train, **data):
    return list(rows_of(source_of(train, **data)))


def values(train, **data):
    rows = read(train, **data)
    assert all(isinstance(row, Row) for row in rows), rows
    return [row.values for row in rows]


def problems(train, **data):
    """Sentences of the malformed records."""
    return [" ".join(row) for row in read(train, **data) if isinstance(row, Malformed)]


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
