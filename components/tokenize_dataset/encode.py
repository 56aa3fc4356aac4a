"""What a worker makes of a block: rows that are parsed, encoded and hashed, as a few arrays."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from components.tokenize_dataset.documents import Encoded, Encoder
from components.tokenize_dataset.row_hash import falls_below, row_hash
from components.tokenize_dataset.shapes import Shape
from components.tokenize_dataset.spool import DOCUMENT, ROW, TOKEN, EncodedRows, as_tokens, pack_hashes
from training.config import DataConfig
from training.sources.rows import Block, Malformed, Row


class LeftOut(NamedTuple):
    """A record that is not used.

    Attributes:
        record: Which, and why.
        place: How many rows of the block stand before it.
    """

    record: Malformed
    place: int


class EncodedBlock(NamedTuple):
    """A block, encoded."""

    encoded: EncodedRows
    left_out: list[LeftOut]


@dataclass(frozen=True)
class Setup:
    """What encoding takes besides the blocks.

    Attributes:
        data: The config.
        shapes: Of each source.
        first_heldout: Sources from this number on are for evaluation.
        tokenizer: A fast tokenizer.
    """

    data: DataConfig
    shapes: list[Shape]
    first_heldout: int
    tokenizer: Any


class BlockEncoder:
    """Encodes blocks of all sources, in this process; it pickles, with all that it has learned of the tokenizer.

    Raises:
        UserError: The tokenizer or its template cannot teach a source's shape.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._encoders = [Encoder(setup.data, shape, setup.tokenizer) for shape in setup.shapes]

    def encode(self, source: int, block: Block) -> EncodedBlock:
        """Encode a block of a source."""
        parsed = list(block.rows())
        rows = [row for row in parsed if isinstance(row, Row)]
        results = iter(self._encoders[source].encode(rows))
        left_out: list[LeftOut] = []
        kept: list[tuple[Row, Encoded]] = []
        for record in parsed:
            result = record if isinstance(record, Malformed) else next(results)
            if isinstance(result, Malformed):
                left_out.append(LeftOut(result, len(kept)))
            else:
                assert isinstance(record, Row)
                kept.append((record, result))
        return EncodedBlock(self._compact(source, kept), left_out)

    def _compact(self, source: int, kept: list[tuple[Row, Encoded]]) -> EncodedRows:
        columns = self._setup.shapes[source].columns
        documents = [document for _, encoded in kept for document in encoded.documents]
        lengths = np.fromiter((len(ids) for ids, _ in documents), DOCUMENT, len(documents))
        tokens = np.empty(0, TOKEN)
        if documents:
            ids = np.concatenate([document.input_ids for document in documents])
            tokens = as_tokens(ids, np.concatenate([document.labels for document in documents]))
        rows = np.zeros(len(kept), ROW)
        if kept:
            rows["hash"] = pack_hashes([row_hash(row, columns) for row, _ in kept])
            rows["num_documents"] = [len(encoded.documents) for _, encoded in kept]
            rows["num_tokens"] = [encoded.num_tokens for _, encoded in kept]
            for name in ("num_unsupervised", "num_texts", "num_long"):
                rows[name] = [getattr(encoded, name) for _, encoded in kept]
            ends = np.cumsum(rows["num_documents"], dtype=np.int64)
            rows["num_kept_tokens"] = _sums(lengths, ends)
            rows["num_supervised"] = _sums(tokens < 0, np.cumsum(rows["num_kept_tokens"], dtype=np.int64))
        return EncodedRows(rows, lengths, tokens, self._prompts(source, rows, kept))

    def _prompts(
        self, source: int, rows: np.ndarray, kept: list[tuple[Row, Encoded]]
    ) -> dict[int, dict[str, str]]:
        data = self._setup.data
        if source >= self._setup.first_heldout:
            may_be_held_out = np.ones(len(rows), bool)
        elif data.heldout is not None:
            return {}
        else:
            may_be_held_out = falls_below(rows["hash"][:, 0], data.heldout_fraction)
        prompts = {int(place): kept[place][1].prompt for place in np.nonzero(may_be_held_out)[0]}
        return {place: prompt for place, prompt in prompts.items() if prompt is not None}


def _sums(values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Sums of consecutive parts of values that end at `ends`."""
    totals = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])[np.concatenate([[0], ends])]
    return np.diff(totals)
