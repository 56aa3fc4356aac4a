"""Small models, data sets and runs, trained by the processes that the product starts."""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from training.data import PackedSample
from training.events import TrainStep, read_events
from training.run_folder import RunFolder

VOCABULARY = 96


def llama_config(**changes) -> LlamaConfig:
    defaults = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    return LlamaConfig(**{**defaults, **changes})


def save_model(folder: Path, config) -> Path:
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def packed_rows(num_rows: int, seed: int = 0, width: int = 48) -> list[dict[str, np.ndarray]]:
    """Rows of several documents with uneven shares of supervised tokens, as the tokenizer step makes them."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(num_rows):
        lengths = rng.integers(4, 14, size=int(rng.integers(2, 4)))
        ids = rng.integers(0, VOCABULARY, size=int(lengths.sum()))
        labels = np.append(ids[1:], 0)
        labels[rng.random(len(ids)) < rng.uniform(0.2, 0.8)] = -100
        labels[np.cumsum(lengths) - 1] = -100
        labels[0] = ids[1]
        rows.append({"input_ids": ids, "labels": labels, "lengths": lengths})
    return rows


def as_sample(row: dict[str, np.ndarray]) -> PackedSample:
    return PackedSample(*(row[name].astype(np.int32) for name in ("input_ids", "labels", "lengths")))


def write_arrow(path: Path, rows: list[dict[str, np.ndarray]], rows_per_batch: int = 4) -> None:
    schema = pa.schema([(name, pa.list_(pa.int32())) for name in ("input_ids", "labels", "lengths")])
    with pa.ipc.new_file(str(path), schema) as writer:
        for first in range(0, len(rows), rows_per_batch):
            part = rows[first : first + rows_per_batch]
            writer.write_batch(
                pa.record_batch([[row[name].tolist() for row in part] for name in schema.names], schema=schema)
            )


forkserver = multiprocessing.get_context("forkserver")
# A rank spends most of its life importing; these tests start dozens.
forkserver.set_forkserver_preload(
    ["training.worker", "training.rank", "training.measure.rank", "transformers.models.llama.modeling_llama"]
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _become_rank(rank: int, world_size: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)


def _call_as_rank(function, rank: int, world_size: int, port: int, *args) -> None:
    _become_rank(rank, world_size, port)
    torch.distributed.init_process_group("gloo")
    function(rank, *args)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run_ranks(world_size: int, function: Callable[..., None], *args) -> None:
    """Call `function(rank, *args)` in a gloo group of real processes; an exception in one fails the test."""
    port = free_port()
    ranks = [
        forkserver.Process(target=_call_as_rank, args=(function, rank, world_size, port, *args))
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=120)
    assert [process.exitcode for process in ranks] == [0] * world_size


def _run_rank(folder: str, rank: int, world_size: int, attempt: int, port: int) -> None:
    from training import worker

    _become_rank(rank, world_size, port)
    os.environ["SHARDLINE_ATTEMPT"] = str(attempt)
    log = os.open(f"{folder}/rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.exit(worker.main(folder))


class Run:
    """A run in a store of its own."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def popen(self, world_size: int, attempt: int = 1, **env: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "training.node", str(self.folder.path)],
            env={
                **os.environ,
                "SHARDLINE_ATTEMPT": str(attempt),
                "PET_NNODES": "1",
                "PET_NPROC_PER_NODE": str(world_size),
                "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": "127.0.0.1:0",
                "PET_LOCAL_ADDR": "127.0.0.1",
                "OMP_NUM_THREADS": "1",
                **env,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def train(self, world_size: int, attempt: int = 1, expect: int = 0) -> None:
        codes = self.ranks(world_size, attempt)
        assert codes == [expect] * world_size, self.logs()

    def ranks(self, world_size: int, attempt: int = 1) -> list[int | None]:
        """Run the ranks' entry point in processes that have torch imported already, without torchrun."""
        port = free_port()
        ranks = [
            forkserver.Process(target=_run_rank, args=(str(self.folder.job_path), rank, world_size, attempt, port))
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(timeout=120)
        return [process.exitcode for process in ranks]

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.job_path.glob("*.log")))

    def steps(self) -> list[TrainStep]:
        by_number = {e.step: e for e in read_events(self.folder.events) if isinstance(e, TrainStep)}
        return [by_number[number] for number in sorted(by_number)]

    def error(self, attempt: int = 1, rank: int = 0) -> str:
        return json.loads((self.folder.attempt(attempt) / "errors" / f"rank-{rank}.json").read_text())["message"]
