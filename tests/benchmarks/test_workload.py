"""All sides see the same documents and labels, in the same steps."""

import numpy as np
import pytest
from transformers import DataCollatorWithFlattening
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from benchmarks.ours import write_in_order
from benchmarks.workload import Work, as_peers_read, deal, peer_documents
from tests.benchmarks.sides import random_documents
from training.data import IGNORE, GlobalOrder, PackedDataset, rank_samples

SEED = 1


def test_documents_are_dealt_in_their_order():
    assert deal(list(range(12)), 2, 2, 3) == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]


def test_too_few_documents_are_refused():
    with pytest.raises(ValueError, match="2 steps need 12 documents, but there are 11"):
        deal(list(range(11)), 2, 2, 3)


def test_a_run_reads_the_samples_in_the_order_of_the_steps(tmp_path):
    steps = deal(random_documents(40), 5, 2, 4)
    write_in_order(tmp_path / "train.arrow", [rank for step in steps for rank in step], SEED)
    dataset = PackedDataset(tmp_path / "train.arrow")
    order = GlobalOrder(len(dataset), SEED)
    for number, step in enumerate(steps):
        for rank, documents in enumerate(step):
            (sample,) = rank_samples(
                dataset, order, number, global_batch_size=2, total_samples=10, rank=rank, world_size=2
            )
            assert np.array_equal(sample.input_ids, np.concatenate([d.input_ids for d in documents]))
            assert np.array_equal(sample.labels, np.concatenate([d.labels for d in documents]))
            assert sample.lengths.tolist() == [len(d.input_ids) for d in documents]


def test_peers_take_the_documents_in_the_same_order(tmp_path):
    steps = deal(random_documents(16), 2, 2, 4)
    rows = peer_documents(Work(tmp_path, steps))
    # Rank r takes every second batch of four, from the r-th on.
    for step in range(2):
        for rank in range(2):
            first = (2 * step + rank) * 4
            taken = [row["input_ids"] for row in rows[first : first + 4]]
            assert taken == [document.input_ids.tolist() for document in steps[step][rank]]


@pytest.mark.parametrize("collate", [DataCollatorWithFlattening(), DataCollatorForLanguageModeling(0, True)])
def test_a_peer_predicts_the_same_tokens_at_the_same_positions(collate):
    documents = random_documents(4)
    batch = collate([as_peers_read(document) for document in documents])
    ids, labels = batch["input_ids"][0].numpy(), batch["labels"][0].numpy()
    assert np.array_equal(ids, np.concatenate([d.input_ids for d in documents]))
    assert batch["position_ids"][0].tolist() == [i for d in documents for i in range(len(d.input_ids))]
    # transformers shifts by itself: what stands at a position is predicted at the one before.
    shifted = np.append(labels[1:], IGNORE)
    assert np.array_equal(shifted, np.concatenate([d.labels for d in documents]))


def test_supervised_tokens_are_counted_by_step(tmp_path):
    work = Work(tmp_path, deal(random_documents(8), 2, 2, 2))
    expected = [
        sum(label != IGNORE for rank in step for d in rank for label in as_peers_read(d)["labels"])
        for step in work.steps
    ]
    assert work.num_supervised == expected
