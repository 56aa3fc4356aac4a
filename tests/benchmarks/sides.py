"""Work that is small enough for a test."""

import numpy as np

from benchmarks.workload import Work, deal
from components.tokenize_dataset.documents import Document
from tests.doubles.models import save_tiny_model
from training.store import seal

VOCABULARY = 31
"""Words of the tiny tokenizer."""


def random_documents(number):
    """Documents of uneven lengths, each with a prompt that is not supervised."""
    rng = np.random.default_rng(0)
    documents = []
    for _ in range(number):
        ids = rng.integers(0, VOCABULARY, int(rng.integers(5, 14))).astype(np.int32)
        labels = np.append(ids[1:], -100).astype(np.int32)
        labels[: int(rng.integers(1, 4))] = -100
        documents.append(Document(ids, labels))
    return documents


def tiny_work(folder, num_steps):
    """A tiny model, and two ranks of two documents for each step."""
    documents = random_documents(4 * num_steps)
    model = save_tiny_model(folder / "tiny")
    seal(model, {"vocab_size": VOCABULARY})
    return Work(model, deal(documents, num_steps, 2, 2))
