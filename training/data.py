"""Packed samples: how they are read, in which order, and how they become batches.

The order is a pure function of (seed, global sample index), so any number of ranks reads the same samples in
the same order, and a run resumes at any step by counting.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from training.device import to_device
from training.errors import UserError

IGNORE = -100
"""Label of a position that is not supervised; what torch's cross-entropy ignores."""


@dataclass(frozen=True)
class PackedSample:
    """Documents one after another, at most a sequence length of tokens.

    Attributes:
        input_ids: int32 [tokens].
        labels: int32 [tokens]; the token to predict at each position, or `IGNORE`. Already shifted.
        lengths: int32 [documents]; they sum to the number of tokens.
    """

    input_ids: np.ndarray
    labels: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True)
class Batch:
    """A micro-batch on one rank.

    Attributes:
        input_ids: int64 [samples, tokens].
        position_ids: int64 [samples, tokens]; restarts at 0 with every document, which is what keeps documents
            from seeing each other.
        supervised: int64 [supervised]; the positions that carry a label, counted through all samples.
        targets: int64 [supervised]; the tokens to predict there.
        document_bounds: int32 [documents + 1]; where documents begin and end, counted through all samples, as
            variable-length attention takes them. The padding of a sample is a document.
        longest: Tokens of the longest document.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    supervised: torch.Tensor
    targets: torch.Tensor
    document_bounds: torch.Tensor
    longest: int


class PackedDataset:
    """Memory-mapped packed samples.

    Args:
        path: Arrow IPC file with columns input_ids, labels, lengths.
    """

    def __init__(self, path: Path) -> None:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        self._ends = np.cumsum([batch.num_rows for batch in self._batches])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> PackedSample:
        number = int(np.searchsorted(self._ends, index, side="right"))
        batch = self._batches[number]
        row = index - (int(self._ends[number]) - batch.num_rows)
        return PackedSample(*(_values(batch.column(name), row) for name in ("input_ids", "labels", "lengths")))

    def longest_document(self) -> int:
        """Tokens of the longest document."""
        longest = (pc.max(batch.column("lengths").flatten()).as_py() for batch in self._batches)
        return max((length for length in longest if length is not None), default=0)


def _values(column: pa.ListArray, row: int) -> np.ndarray:
    values: np.ndarray = column[row].values.to_numpy(zero_copy_only=True)
    return values


class GlobalOrder:
    """Which sample is the n-th of the whole run: epoch after epoch, each a fresh permutation.

    Args:
        num_samples: Samples in the data set.
        seed: With the epoch, the seed of its permutation.
    """

    def __init__(self, num_samples: int, seed: int) -> None:
        self.num_samples = num_samples
        self.seed = seed
        self._epoch = -1
        self._permutation = np.empty(0, dtype=np.int64)

    def __getitem__(self, position: int) -> int:
        epoch, offset = divmod(position, self.num_samples)
        if epoch != self._epoch:
            self._permutation = np.random.default_rng((self.seed, epoch)).permutation(self.num_samples)
            self._epoch = epoch
        return int(self._permutation[offset])


def rank_samples(
    dataset: PackedDataset,
    order: GlobalOrder,
    step: int,
    *,
    global_batch_size: int,
    total_samples: int,
    rank: int,
    world_size: int,
) -> list[PackedSample]:
    """The samples that one rank contributes to one step.

    Every rank gets the same number. When the run's last batch is short, the places that are left are filled with
    an empty sample that costs and teaches nothing, so that all ranks take part in every collective.

    Args:
        dataset: The samples.
        order: The run's order.
        step: Counted from 0.
        global_batch_size: Samples in a step, over all ranks; a multiple of `world_size`.
        total_samples: Samples in the whole run.
        rank: This rank.
        world_size: Number of ranks.
    """
    first = step * global_batch_size
    positions = range(first + rank, first + global_batch_size, world_size)
    return [dataset[order[p]] if p < total_samples else EMPTY_SAMPLE for p in positions]


EMPTY_SAMPLE = PackedSample(
    input_ids=np.zeros(1, dtype=np.int32),
    labels=np.full(1, IGNORE, dtype=np.int32),
    lengths=np.ones(1, dtype=np.int32),
)


def collate(samples: list[PackedSample], device: torch.device) -> Batch:
    """Stack samples; the shorter are padded with a document of their own that has no labels."""
    width = max(len(sample.input_ids) for sample in samples)
    shape = (len(samples), width)
    input_ids = np.zeros(shape, dtype=np.int64)
    labels = np.full(shape, IGNORE, dtype=np.int64)
    lengths: list[int] = []
    for row, sample in enumerate(samples):
        tokens = len(sample.input_ids)
        input_ids[row, :tokens] = sample.input_ids
        labels[row, :tokens] = sample.labels
        lengths += [int(length) for length in (*sample.lengths, width - tokens) if length]
    position_ids = np.concatenate([np.arange(length) for length in lengths]).reshape(shape)
    (supervised,) = (labels.reshape(-1) != IGNORE).nonzero()

    def put(values: np.ndarray) -> torch.Tensor:
        return to_device(torch.from_numpy(values), device)

    return Batch(
        input_ids=put(input_ids),
        position_ids=put(position_ids),
        supervised=put(supervised),
        targets=put(labels.reshape(-1)[supervised]),
        document_bounds=put(np.cumsum([0, *lengths], dtype=np.int32)),
        longest=max(lengths),
    )


def num_supervised(samples: list[PackedSample]) -> int:
    """Positions that carry a label."""
    return sum(int((sample.labels != IGNORE).sum()) for sample in samples)


def squared_lengths(samples: list[PackedSample]) -> int:
    """Sum of the squares of documents' lengths, to which the work of attention is proportional."""
    return sum(int(np.square(sample.lengths, dtype=np.int64).sum()) for sample in samples)


def num_tokens(samples: list[PackedSample]) -> int:
    """Tokens of real samples; the filler of a short last batch does not count."""
    return sum(len(sample.input_ids) for sample in samples if sample is not EMPTY_SAMPLE)


def check_lengths(dataset: PackedDataset, config: Any, max_context: int | None = None) -> None:
    """Make sure that a model has positions for every document.

    Args:
        dataset: Packed samples.
        config: The model's transformers config.
        max_context: `model.max_context`, which stands in for the model's own context where positions are rotary,
            and so have no end.

    Raises:
        UserError: A document is longer than the model's context.
    """
    config = config.get_text_config()
    context = getattr(config, "max_position_embeddings", None)
    if max_context is not None and getattr(config, "rope_parameters", None):
        context = max_context
    longest = dataset.longest_document()
    if context is not None and longest > context:
        raise UserError(
            f"the data has a document of {longest} tokens, but the model's context has {context}: set "
            f"data.sequence_length to at most {context}, or choose a model with a longer context"
        )
