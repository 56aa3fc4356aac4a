import functools
import json

import pytest

from tests.assets import CHATML_TEMPLATE, tokenizer
from tests.doubles.models import save_tiny_model
from tests.doubles.steps import RecordingStep


@pytest.fixture(scope="session")
def real_tokenizer():
    """Loads one of the real tokenizers by its name; GPT-2, which has no chat template, is given one."""

    @functools.cache
    def load(name):
        loaded = tokenizer(name)
        if name == "gpt2":
            assert loaded.chat_template is None
            loaded.chat_template = CHATML_TEMPLATE
        return loaded

    return load


@pytest.fixture(scope="session")
def smollm2_tokenizer(real_tokenizer):
    return real_tokenizer("smollm2")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A folder with a model and a tokenizer of whole words."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def write_rows(tmp_path):
    def write(rows, name="train.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


@pytest.fixture
def step_for(tmp_path, tiny_model):
    def make(train, run="run", model=tiny_model, **data):
        train = train if isinstance(train, list) else str(train)
        data = {"sequence_length": 32, "heldout_fraction": 0.3, "num_workers": 1, **data, "train": train}
        return RecordingStep(tmp_path / "store", {"model": {"name": str(model)}, "data": data}, run)

    return make
