"""Our side: a run folder, trained by the program that every run of Shardline is trained by."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.hyperparameters import Hyperparameters
from benchmarks.result import Result
from benchmarks.workload import Work
from components.tokenize_dataset.documents import Document
from training.config import RunConfig
from training.data import GlobalOrder
from training.events import TrainStep, read_events
from training.run_folder import RunFolder
from training.store import seal


def train(work: Work, hyper: Hyperparameters, precision: str, root: Path, **training: object) -> Result:
    """Train on the work.

    Args:
        work: What to train on.
        hyper: As all sides.
        precision: fp32 or bf16.
        root: Folder for the run.
        training: Further settings of the section `training`.
    """
    folder = make_run(work, hyper, precision, root, **training)
    run_node(folder, len(work.steps[0]))
    steps = [event for event in read_events(folder.events) if isinstance(event, TrainStep)]
    return Result(
        [step.loss for step in steps],
        [step.seconds - step.checkpoint_s for step in steps],
        int(max(step.memory_gib for step in steps) * 2**30),
    )


def make_run(work: Work, hyper: Hyperparameters, precision: str, root: Path, **training: object) -> RunFolder:
    """A run folder whose every step trains on the documents of a step of the work."""
    samples = [rank for step in work.steps for rank in step]
    dataset = root / "datasets" / "chats"
    dataset.mkdir(parents=True)
    write_in_order(dataset / "train.arrow", samples, hyper.seed)
    # As the tokenizer step leaves it: the run makes sure that the model knows every token.
    largest = max(int(document.input_ids.max()) for sample in samples for document in sample)
    seal(dataset, {"max_token_id": largest})
    settings = {
        "max_steps": len(work.steps),
        "global_batch_size": len(work.steps[0]),
        "micro_batch_size": 1,
        "learning_rate": hyper.learning_rate,
        "schedule": "constant",
        "warmup_ratio": 0.0,
        "weight_decay": hyper.weight_decay,
        "adam_beta1": hyper.beta1,
        "adam_beta2": hyper.beta2,
        "adam_eps": hyper.epsilon,
        "max_grad_norm": hyper.max_grad_norm,
        "precision": precision,
        "seed": hyper.seed,
    }
    config = RunConfig.model_validate(
        {
            # Sources are for the steps before training; what is trained on stands in the run's inputs.
            "model": {"name": "benchmarks/model"},
            "data": {"train": "chats.jsonl", "sequence_length": max(map(_num_tokens, samples))},
            "training": {**settings, **training},
            # Training alone is measured, so only the last step saves.
            "checkpoint": {"every_steps": len(work.steps)},
        }
    )
    folder = RunFolder(root, "benchmark")
    folder.create(config)
    folder.save_input("model", work.model)
    folder.save_input("dataset", dataset)
    return folder


def write_in_order(path: Path, samples: list[list[Document]], seed: int) -> None:
    """Write packed samples so that the run's order, which shuffles, reads them as they are given here.

    Args:
        path: Arrow file to write.
        samples: Documents of each sample.
        seed: The run's.
    """
    order = GlobalOrder(len(samples), seed)
    rows: list[list[Document]] = [[] for _ in samples]
    for position, sample in enumerate(samples):
        rows[order[position]] = sample
    columns = {
        "input_ids": [np.concatenate([document.input_ids for document in row]) for row in rows],
        "labels": [np.concatenate([document.labels for document in row]) for row in rows],
        "lengths": [np.asarray([len(document.input_ids) for document in row]) for row in rows],
    }
    schema = pa.schema([(name, pa.list_(pa.int32())) for name in columns])
    with pa.ipc.new_file(str(path), schema) as writer:
        values = [[row.tolist() for row in column] for column in columns.values()]
        writer.write_batch(pa.record_batch(values, schema=schema))


def run_node(folder: RunFolder, world_size: int) -> None:
    """Train a run with its own entry point.

    Raises:
        RuntimeError: It failed; with its log.
    """
    environment = {
        **os.environ,
        "SHARDLINE_ATTEMPT": "1",
        "PET_NNODES": "1",
        "PET_NPROC_PER_NODE": str(world_size),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "127.0.0.1:0",
        "PET_LOCAL_ADDR": "127.0.0.1",
    }
    command = [sys.executable, "-m", "training.node", str(folder.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"our side failed:\n{done.stdout}\n{done.stderr}")


def _num_tokens(sample: list[Document]) -> int:
    return sum(len(document.input_ids) for document in sample)
