"""Spools of made-up rows."""

import numpy as np

from components.tokenize_dataset.row_hash import row_hash
from components.tokenize_dataset.spool import DOCUMENT, ROW, EncodedRows, Spool, as_tokens, pack_hashes
from training.data import IGNORE
from training.sources.rows import Row


def encoded(texts, lengths=None):
    """A row of one document for each text; every second token is supervised.

    Args:
        texts: Decide on the hashes.
        lengths: Tokens of each row; by default 4.
    """
    lengths = [4] * len(texts) if lengths is None else lengths
    rows = np.zeros(len(texts), ROW)
    if texts:
        rows["hash"] = pack_hashes([row_hash(Row("", {"text": text}), {"text": "text"}) for text in texts])
    rows["num_documents"] = rows["num_texts"] = 1
    rows["num_tokens"] = rows["num_kept_tokens"] = lengths
    tokens = []
    for text, length in zip(texts, lengths, strict=True):
        ids = (np.arange(length) + sum(map(ord, text))).astype(np.int32)
        labels = np.full(length, IGNORE, np.int32)
        labels[:-1:2] = ids[1::2]
        tokens.append(as_tokens(ids, labels))
    flat = np.concatenate(tokens) if tokens else np.empty(0, np.int32)
    return EncodedRows(rows, np.asarray(lengths, DOCUMENT), flat, {})


def spool_of(folder, *sources, lengths=None):
    """A closed spool with a source for each list of texts."""
    folder.mkdir(parents=True, exist_ok=True)
    spool = Spool(folder)
    for number, texts in enumerate(sources):
        spool.begin_source()
        spool.append(encoded(texts, None if lengths is None else lengths[number]))
    spool.close()
    return spool
