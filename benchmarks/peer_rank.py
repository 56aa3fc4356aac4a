"""One rank of a peer's training: `torchrun -m benchmarks.peer_rank JOB`, JOB being what `benchmarks.peers` writes.

The peer gets the very documents, labels and hyper-parameters that our side trains on, in the same order, and
keeps nothing: no checkpoints, no reports, no progress bar.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    DataCollatorWithFlattening,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from training.device import peak_memory_bytes


def main(job_file: str) -> None:
    """Train, and write what this rank saw to `rank-<n>.json` beside the job."""
    job = json.loads(Path(job_file).read_text())
    torch.manual_seed(job["arguments"]["seed"])
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32, attn_implementation="sdpa")
    watch = _Watch()
    make = {"trainer": _trainer, "trl": _trl}[job["peer"]]
    trainer = make(job, model, Dataset.from_list(job["documents"]))
    trainer.add_callback(watch)
    trainer.train()
    rank = os.environ["RANK"]
    (Path(job_file).parent / f"rank-{rank}.json").write_text(
        json.dumps({"steps": watch.steps, "peak_bytes": peak_memory_bytes(torch.device("cpu"))})
    )


def _trainer(job: dict[str, Any], model: Any, documents: Dataset) -> Trainer:
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    # Padding is neither seen nor supervised, so that any token will do.
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    collator = DataCollatorWithFlattening() if job["padding_free"] else DataCollatorForSeq2Seq(tokenizer)
    return Trainer(model, TrainingArguments(**job["arguments"]), train_dataset=documents, data_collator=collator)


def _trl(job: dict[str, Any], model: Any, documents: Dataset) -> Trainer:
    from trl import SFTConfig, SFTTrainer

    # Lengths are whole already; a limit would make TRL look at every document again.
    arguments = SFTConfig(**job["arguments"], padding_free=job["padding_free"], max_length=None)
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    trainer: Trainer = SFTTrainer(model, arguments, train_dataset=documents, processing_class=tokenizer)
    return trainer


class _Watch(TrainerCallback):
    """Loss and wall time of every step; a step lasts from the end of the one before to its own."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._last = 0.0

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._last = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
        if "loss" not in logs:
            return  # the summary at the end
        now = time.perf_counter()
        self.steps.append({"loss": logs["loss"], "seconds": now - self._last})
        self._last = now


if __name__ == "__main__":
    main(sys.argv[1])
