"""What every side trains on: the quick start's model and chats, dealt out to steps and ranks."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from components.download_model.download import download
from components.step import Step
from components.tokenize_dataset.documents import Document, Encoded, Encoder
from components.tokenize_dataset.shapes import detect
from training.config import RunConfig
from training.data import IGNORE
from training.model_source import load_tokenizer
from training.resolve import find_recipe, read_recipe, resolve
from training.run_folder import RunFolder
from training.sources.open import open_train
from training.sources.rows import Row, rows_of

WORLD_SIZE = 2
CHATS_PER_RANK = 4


@dataclass(frozen=True)
class Work:
    """A model, and what each step trains it on.

    Attributes:
        model: Folder in safetensors, with its tokenizer.
        steps: Documents by step and rank.
    """

    model: Path
    steps: list[list[list[Document]]]

    @property
    def num_supervised(self) -> list[int]:
        """Tokens of each step that the loss is taken over."""
        return [sum(int((d.labels != IGNORE).sum()) for rank in step for d in rank) for step in self.steps]


def quickstart_work(store: Path, num_steps: int) -> Work:
    """The quick start's model, and the first of its chats in the order of their file.

    Args:
        store: Where the converted model is kept.
        num_steps: Steps to fill.
    """
    config = resolve(read_recipe(find_recipe("quickstart")))
    model = _published_model(store, config)
    ((source, named),) = zip(open_train(config.data), config.data.train_sources, strict=True)
    rows = [row for row in rows_of(source) if isinstance(row, Row)]
    encoder = Encoder(config.data, detect(rows, named, source.name), load_tokenizer(config.model))
    documents = [d for row in encoder.encode(rows) if isinstance(row, Encoded) for d in row.documents]
    return Work(model, deal(documents, num_steps, WORLD_SIZE, CHATS_PER_RANK))


def deal(
    documents: Sequence[Document], num_steps: int, world_size: int, per_rank: int
) -> list[list[list[Document]]]:
    """Deal documents out in their order: to a step's ranks one after another, then to the next step.

    Raises:
        ValueError: There are too few.
    """
    needed = num_steps * world_size * per_rank
    if needed > len(documents):
        raise ValueError(f"{num_steps} steps need {needed} documents, but there are {len(documents)}")
    parts = [list(documents[first : first + per_rank]) for first in range(0, needed, per_rank)]
    return [parts[first : first + world_size] for first in range(0, len(parts), world_size)]


def as_peers_read(document: Document) -> dict[str, list[int]]:
    """A document with the labels that transformers expects: not shifted, each under its own token."""
    labels = np.full(len(document.labels), IGNORE, np.int32)
    labels[1:] = document.labels[:-1]
    return {"input_ids": document.input_ids.tolist(), "labels": labels.tolist()}


def peer_documents(work: Work) -> list[dict[str, Any]]:
    """All documents, in the order in which the ranks of a peer take them."""
    return [as_peers_read(document) for step in work.steps for rank in step for document in rank]


def _published_model(store: Path, config: RunConfig) -> Path:
    folder = RunFolder(store, "benchmarks")
    folder.create(config)
    # What the step has to say is not a figure.
    with contextlib.redirect_stdout(sys.stderr), Step("download_model", str(store), "benchmarks") as step:
        return download(step)
    raise AssertionError("the step leaves the process when it fails")
