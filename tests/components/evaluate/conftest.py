"""A tiny model with a chat tokenizer, packed held-out rows, and a run that was trained on them."""

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from components.evaluate.evaluate import evaluate_run
from components.jobs import jobs
from components.step import Step
from tests.components.evaluate.measuring import QuickLauncher
from training.config import RunConfig
from training.run_folder import RunFolder
from training.store import Store, seal

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }} [end] {% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
WORDS = ["[unk]", "[stop]", "[end]", "[user]", "[assistant]", *(f"w{i}" for i in range(43))]
SPECIAL = {"unk_token": "[unk]", "eos_token": "[stop]", "additional_special_tokens": WORDS[2:5]}


@dataclass
class Packed:
    """A packed row: `labels` are shifted already, -100 where nothing is supervised."""

    input_ids: list[int]
    labels: list[int]
    lengths: list[int]


@pytest.fixture(scope="session")
def tokenizer():
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[unk]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=TEMPLATE, **SPECIAL)


@pytest.fixture(scope="session")
def make_model():
    def make(seed: int = 0, **changes) -> LlamaForCausalLM:
        torch.manual_seed(seed)
        sizes = {
            "vocab_size": len(WORDS),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            # Wide enough that models differ and greedy choices are no ties.
            "initializer_range": 0.3,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        return LlamaForCausalLM(LlamaConfig(**{**sizes, **changes})).eval()

    return make


@pytest.fixture(scope="session")
def packed_rows() -> list[Packed]:
    """Three rows: two and three documents, and one of which nothing is supervised."""
    generator = torch.Generator().manual_seed(7)
    rows = []
    for lengths in ([9, 5], [4, 1, 8], [6]):
        input_ids, labels = [], []
        for length in lengths:
            tokens = torch.randint(5, len(WORDS), (length,), generator=generator).tolist()
            input_ids += tokens
            labels += [-100] * (length // 2) + tokens[length // 2 + 1 :] + [-100]
        rows.append(Packed(input_ids, labels[: len(input_ids)], list(lengths)))
    rows[2].labels = [-100] * 6
    assert all(len(row.input_ids) == len(row.labels) == sum(row.lengths) for row in rows)
    return rows


@pytest.fixture
def write_rows():
    def write(path: Path, rows: list[Packed]) -> Path:
        columns = {
            name: pa.array([getattr(row, name) for row in rows], pa.list_(pa.int32()))
            for name in ("input_ids", "labels", "lengths")
        }
        table = pa.table(columns)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        return path

    return write


class RecordedMetrics(dict):
    def log_metric(self, metric: str, value: float) -> None:
        self[metric] = value


@pytest.fixture
def metrics():
    return RecordedMetrics()


@pytest.fixture
def trained_run(tmp_path, tokenizer, make_model, packed_rows, write_rows):
    """Makes the step of a run that has base model, data set and tuned model."""

    def make(run: str = "a-run", tuned: bool = True, prompts: int = 5, dataset_facts=None, **sections) -> Step:
        store = Store(tmp_path / "store")
        if not store.get("models", "m1"):
            about_model = {"source": "org/tiny", "revision": "abc123", "vocab_size": len(WORDS)}
            with store.publish("models", "m1", about_model) as folder:
                make_model(0).save_pretrained(folder)
                tokenizer.save_pretrained(folder)
        if not store.get("datasets", "d1"):
            facts = {"source": "qa.jsonl", "num_train_rows": 1234, "max_token_id": len(WORDS) - 1}
            with store.publish("datasets", "d1", facts | (dataset_facts or {})) as folder:
                write_rows(folder / "heldout.arrow", packed_rows)
                lines = [
                    {"prompt": f"[user] w{i} [end] [assistant] ", "question": f"w{i}", "reference": "w9"}
                    for i in range(prompts)
                ]
                (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        folder = RunFolder(store.root, run)
        settings = {
            "model": {"name": "org/tiny"},
            "data": {"train": "qa.jsonl", "sequence_length": 16},
            "training": {"precision": "fp32"},
            "evaluation": {"num_generations": 3, "max_new_tokens": 4},
            "parallel": {"procs_per_node": 1},
        }
        folder.create(RunConfig.model_validate(settings | sections))
        folder.save_input("model", store.path("models", "m1"))
        folder.save_input("dataset", store.path("datasets", "d1"))
        if tuned and not folder.model.exists():
            make_model(1).save_pretrained(folder.model)
            tokenizer.save_pretrained(folder.model)
            seal(folder.model, {"run": run})
        return Step("evaluate", str(store.root), run)

    return make


@pytest.fixture
def jobs_made(monkeypatch):
    """Runs jobs in forked ranks; the jobs that were made."""
    monkeypatch.setattr(jobs, "LocalLauncher", QuickLauncher)
    monkeypatch.setattr(QuickLauncher, "jobs", [])
    return QuickLauncher.jobs


@pytest.fixture
def evaluate(metrics, tmp_path, jobs_made):
    """Evaluates a run; the folder of what it made: `report.html` and `decision.md`."""

    def run(step: Step, name: str = "out") -> Path:
        folder = tmp_path / name
        evaluate_run(step, metrics, folder / "report.html", folder / "decision.md")
        return folder

    return run
