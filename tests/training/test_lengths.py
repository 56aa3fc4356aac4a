"""Documents that are longer than the model's context are refused on the ranks too."""

import numpy as np
import pytest

from tests.doubles.architectures import CONFIGS
from tests.runs import packed_rows, write_arrow
from training.data import PackedDataset, check_lengths
from training.errors import UserError


@pytest.fixture
def dataset(tmp_path):
    """Samples of several documents in several batches; the longest document has 70 tokens."""
    rows = packed_rows(11)
    rows[6] = {"input_ids": np.ones(80, int), "labels": np.ones(80, int), "lengths": np.asarray([10, 70])}
    write_arrow(tmp_path / "train.arrow", rows)
    return PackedDataset(tmp_path / "train.arrow")


def test_the_longest_document_counts_not_the_longest_sample(dataset):
    assert dataset.longest_document() == 70


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_a_document_beyond_the_context_is_refused(dataset, name):
    says = r"a document of 70 tokens, but the model's context has 64: set data\.sequence_length to at most 64"
    with pytest.raises(UserError, match=says):
        check_lengths(dataset, CONFIGS[name])


def test_max_context_lengthens_rotary_positions_and_no_others(dataset):
    check_lengths(dataset, CONFIGS["llama"], max_context=70)
    with pytest.raises(UserError, match="context has 69"):
        check_lengths(dataset, CONFIGS["llama"], max_context=69)
    with pytest.raises(UserError, match="context has 64"):
        check_lengths(dataset, CONFIGS["gpt2"], max_context=128)
