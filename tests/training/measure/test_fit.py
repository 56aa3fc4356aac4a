"""Whether a model is whole on every rank or sharded over all."""

import pytest
import torch

from tests.runs import run_ranks
from training.measure import fit
from training.measure.fit import is_to_shard

CPU = torch.device("cpu")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("choice", "sharded"), [("none", False), ("full", True), ("auto", False)])
def test_one_rank_has_nothing_to_share_with(choice, sharded, monkeypatch):
    monkeypatch.setattr(fit, "_free_host_bytes", lambda: 10)
    assert is_to_shard(choice, 1000, CPU) == sharded


def decide(rank, num_bytes, expected):
    # The ranks of a node share its memory, and one that has less decides for all.
    fit._free_host_bytes = lambda: 2000 if rank == 0 else 1600
    assert is_to_shard("auto", num_bytes, CPU) == expected


@pytest.mark.parametrize(("num_bytes", "expected"), [(600, False), (700, True)])
def test_what_does_not_fit_the_smallest_is_sharded(num_bytes, expected):
    run_ranks(2, decide, num_bytes, expected)


def test_a_host_s_memory_is_told():
    assert 0 < fit._free_host_bytes() < 2**50
