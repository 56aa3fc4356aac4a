"""What became of each source's rows, counted."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from components.tokenize_dataset.read import Reading
from components.tokenize_dataset.shapes import Shape
from components.tokenize_dataset.split import Fate
from components.tokenize_dataset.spool import Spool
from components.tokenize_dataset.write import SampleCounts
from training.sources.rows import Source

NUM_BINS = 64
"""Bins of the lengths; a bin is half a power of two wide, so they reach four billion tokens."""


@dataclass
class SourceStatistics:
    """A source, and what became of its rows.

    Attributes:
        source: Where they are from.
        given: The same as the config has it.
        shape: What was found.
        reading: What was left out.
        fates: Rows by what became of them.
        num_tokens: Of rows that are used, before they were cut.
        num_long: Rows that are used and have a text longer than `data.sequence_length`.
        long_documents: What happened to these: `cut` or `split`.
        num_unsupervised: Pieces of rows that are used which were dropped, as nothing in them is supervised.
        num_rewritten: Rows that are used as several texts, as the chat template rewrites earlier turns.
        lengths: int64 [NUM_BINS]; rows that are used, by their length before they were cut, in bins (`bin_of`).
        passes: How often its rows to train on are gone through in an epoch.
        train: Its packed samples to train on.
        heldout: Its packed samples to evaluate on.
    """

    source: Source
    given: str
    shape: Shape
    reading: Reading
    long_documents: str
    fates: dict[Fate, int] = field(default_factory=dict)
    num_tokens: int = 0
    num_long: int = 0
    num_unsupervised: int = 0
    num_rewritten: int = 0
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))
    passes: float = 1.0
    train: SampleCounts = field(default_factory=SampleCounts)
    heldout: SampleCounts = field(default_factory=SampleCounts)
    train_tokens_of_a_pass: int = 0

    def count(self, spool: Spool, number: int, fates: np.ndarray) -> None:
        """Count a source's rows.

        Args:
            spool: Holds them.
            number: The source's.
            fates: `Fate` uint8 [rows of all sources].
        """
        counts = np.zeros(max(Fate) + 1, np.int64)
        for first, rows in spool.rows(number):
            fate = fates[first : first + len(rows)]
            counts += np.bincount(fate, minlength=len(counts))
            self.train_tokens_of_a_pass += int(rows["num_kept_tokens"][fate == Fate.TRAIN].sum(dtype=np.int64))
            used = rows[(fate == Fate.TRAIN) | (fate == Fate.HELDOUT)]
            self.num_tokens += int(used["num_tokens"].sum(dtype=np.int64))
            self.num_long += int((used["num_long"] > 0).sum())
            self.num_rewritten += int((used["num_texts"] > 1).sum())
            self.num_unsupervised += int(used["num_unsupervised"].sum(dtype=np.int64))
            self.lengths += np.bincount(bin_of(used["num_tokens"]), minlength=NUM_BINS)
        self.fates = {fate: int(counts[fate]) for fate in Fate}

    @property
    def num_truncated(self) -> int:
        """Rows that lost their end."""
        return 0 if self.long_documents == "split" else self.num_long

    @property
    def num_split(self) -> int:
        """Rows that became several documents."""
        return self.num_long if self.long_documents == "split" else 0

    def facts(self, part: Fate) -> dict[str, object]:
        """What the manifest records of the source, for the samples to train or to evaluate on."""
        counts = self.train if part == Fate.TRAIN else self.heldout
        dropped: Mapping[str, int] = {
            "num_duplicates_dropped": self.fates[Fate.DUPLICATE],
            "num_leaked_dropped": self.fates[Fate.LEAKED],
            "num_malformed": sum(self.reading.left_out.values()),
        }
        return {
            "name": self.source.name,
            "source": self.given,
            "revision": self.source.revision,
            "format": self.shape.format,
            "form": self.shape.form,
            "columns": dict(self.shape.columns),
            "num_rows": self.fates[part],
            "num_documents": counts.num_documents,
            "num_samples": counts.num_samples,
            "num_tokens": counts.num_tokens,
            "num_supervised": counts.num_supervised,
            **({"passes": self.passes} if part == Fate.TRAIN else {}),
            **dropped,
        }


def bin_of(lengths: np.ndarray) -> np.ndarray:
    """The bins of lengths above 0: bin n holds those from 2^(n/2) on."""
    return np.floor(2 * np.log2(np.maximum(lengths, 1))).astype(np.int64)
