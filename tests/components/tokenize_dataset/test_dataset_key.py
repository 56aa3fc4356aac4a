"""What makes other data of a run's config, and what does not."""

import json

import pytest

from components.tokenize_dataset.tokenize import dataset_key
from training.config import DataConfig, DataSource
from training.sources.open import open_heldout, open_train


@pytest.fixture
def key(tmp_path, monkeypatch):
    """The key of a config, whose files are told by what is in them and whose hub by what it is asked for."""
    monkeypatch.setattr("training.sources.open.pin_repo", lambda repo, revision, kind: f"commit of {revision}")
    for name, text in (("one", "a"), ("same", "a"), ("other", "b")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": text}) + "\n")
    monkeypatch.chdir(tmp_path)

    def make(tokenizer="tokenizer", **data):
        config = DataConfig.model_validate(data)
        return dataset_key(config, open_train(config), open_heldout(config), tokenizer)

    return make


FILE, HUB = {"train": "one.jsonl"}, {"train": "org/name"}
HELDOUT = {"heldout": "other.jsonl"}

OTHER = {
    "train": (FILE, "other.jsonl"),
    "train_split": (HUB, "rest"),
    "subset": (HUB, "french"),
    "revision": (HUB, "v2"),
    "heldout": (FILE, "other.jsonl"),
    "heldout_split": ({**FILE, "heldout": "org/name"}, "rest"),
    "heldout_fraction": (FILE, 0.4),
    "format": (FILE, "text"),
    "columns": (FILE, {"text": "text"}),
    "prompt_template": (FILE, "{instruction}"),
    "system_prompt": (FILE, "a"),
    "special_tokens": (FILE, "tokens"),
    "sequence_length": (FILE, 40),
    "packing": (FILE, "none"),
    "long_documents": (FILE, "split"),
    "deduplicate": (FILE, False),
    "max_train_rows": (FILE, 10),
    "tokenizer": (FILE, "other"),
}

SAME = {
    "train": (FILE, "same.jsonl"),
    "heldout_fraction": (FILE | HELDOUT, 0.4),
    "max_malformed_rows": (FILE, 3),
    "streaming": (HUB, True),
    "num_workers": (FILE, 2),
}

OF_A_SOURCE = {
    "source": ({}, "other.jsonl"),
    "name": ({}, "mine"),
    "weight": ({}, 2),
    "split": ({"source": "org/name"}, "rest"),
    "subset": ({"source": "org/name"}, "french"),
    "revision": ({"source": "org/name"}, "v2"),
    "format": ({}, "text"),
    "columns": ({}, {"text": "text"}),
}


def test_every_field_is_tried():
    assert {*OTHER, *SAME} - {"tokenizer"} == set(DataConfig.model_fields)
    assert set(OF_A_SOURCE) == set(DataSource.model_fields)


@pytest.mark.parametrize("field", OTHER)
def test_what_samples_are_made_from_makes_other_data(key, field):
    rest, value = OTHER[field]
    assert key(**rest | {field: value}) != key(**rest)


@pytest.mark.parametrize("field", SAME)
def test_how_rows_are_read_does_not(key, field):
    rest, value = SAME[field]
    assert key(**rest | {field: value}) == key(**rest)


@pytest.mark.parametrize("field", OF_A_SOURCE)
def test_each_setting_of_a_source_makes_other_data(key, field):
    rest, value = OF_A_SOURCE[field]
    source = {"source": "one.jsonl", **rest}
    assert key(train=[source | {field: value}]) != key(train=[source])


def test_the_order_of_sources_decides_which_of_equal_rows_stay(key):
    assert key(train=["one.jsonl", "other.jsonl"]) != key(train=["other.jsonl", "one.jsonl"])
