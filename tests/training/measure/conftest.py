"""A run with a base model, a tuned one, an adapter, held-out rows of two sources, and a task in local files."""

import json
import shutil
from pathlib import Path

import pytest

from tests.components.evaluate.conftest import (  # noqa: F401  (fixtures)
    WORDS,
    make_model,
    packed_rows,
    tokenizer,
    trained_run,
    write_rows,
)
from tests.runs import Run
from training.measure.measured import load_measured
from training.measure.request import Subject, measured_folder, save_request


@pytest.fixture
def task_file(tmp_path):
    """A multiple-choice task of lm-eval with its examples beside it."""
    examples = [
        {"question": f"w{i} w{i + 1}", "choices": [f"w{i + 2}", f"w{i + 7}", "w1"], "answer": i % 3}
        for i in range(11)
    ]
    rows = tmp_path / "examples.jsonl"
    rows.write_text("".join(json.dumps(example) + "\n" for example in examples))
    file = tmp_path / "own.yaml"
    file.write_text(
        f"""task: own_words
dataset_path: json
dataset_kwargs:
  data_files: {{test: {rows}}}
output_type: multiple_choice
test_split: test
doc_to_text: "[user] {{{{question}}}} [end] [assistant]"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata: {{version: 1.0}}
"""
    )
    return file


@pytest.fixture
def adapter(tmp_path, make_model):  # noqa: F811
    """An adapter for the base model, as peft writes it."""
    import torch
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        make_model(0), LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "up_proj"])
    )
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.fixture
def measure():
    """Measures models of a run on so many ranks; the results by model."""

    def run(step, num_ranks: int, models: dict[str, tuple[Path, Path | None]], expect: int = 0):
        folder = step.folder.seen_from("evaluation")
        shutil.rmtree(folder.evaluation, ignore_errors=True)
        subjects = [Subject(name, *paths, key=f"key-{name}") for name, paths in models.items()]
        save_request(folder, subjects)
        ranks = Run(folder)
        assert ranks.ranks(num_ranks) == [expect] * num_ranks, ranks.logs()
        return {s.name: load_measured(measured_folder(folder, s.name), s.key) for s in subjects}

    return run


@pytest.fixture
def alone(tmp_path):
    """A process group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
