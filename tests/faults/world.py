"""The small runs that faults are injected into, and what a run is compared with."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from tests.runs import VOCABULARY, llama_config, packed_rows, save_model, write_arrow
from training.config import RunConfig
from training.events import TrainStep, read_events
from training.run_folder import RunFolder
from training.store import Store

EVERY = 5
"""K, steps between two checkpoints."""

STEPS = 30
"""Of a run."""

DEADLINE_S = 5.0
"""D, for each way in which a silence is noticed, in the rows that have one."""

_PATIENCE_S = 30.0
"""The same in all others, so that a machine that does other things too is not taken for one that hangs."""

_ROWS = 512
"""More than a run takes, so that every sample is seen once."""


def make_run(store: Path, name: str, *, nodes: int = 1, ranks: int = 2, **sections: dict[str, Any]) -> RunFolder:
    """A run of a tiny Llama whose steps take about 0.1 s because each is of many micro-batches.

    Args:
        store: Where; the model and the data are made there once.
        name: The run's.
        nodes: Hosts.
        ranks: On each.
        sections: What differs from the defaults below.
    """
    defaults: dict[str, dict[str, Any]] = {
        "model": {"name": "org/tiny"},
        "data": {"train": "org/data"},
        "training": {
            "precision": "fp32",
            "global_batch_size": 16,
            "micro_batch_size": 1,
            "max_steps": STEPS,
        },
        "parallel": {"num_nodes": nodes, "procs_per_node": ranks},
        "checkpoint": {"every_steps": EVERY, "keep_after_finish": True},
        "resilience": {
            "hang_timeout_s": _PATIENCE_S,
            "node_timeout_s": _PATIENCE_S,
            "replacement_timeout_s": 2,
            "health_checks": False,
        },
        "cluster": {"launcher": "pytorchjob", "store_claim": "store", "gpus_per_node": 0},
    }
    given = {**defaults, **{key: {**defaults.get(key, {}), **value} for key, value in sections.items()}}
    folder = RunFolder(store, name)
    folder.create(RunConfig.model_validate(given))
    folder.save_input("model", _model(Store(store)))
    folder.save_input("dataset", _dataset(Store(store)))
    return folder


def _model(store: Store) -> Path:
    if store.get("models", "tiny") is None:
        transformers.logging.disable_progress_bar()
        with store.publish("models", "tiny", {"vocab_size": VOCABULARY}) as staging:
            save_model(staging, llama_config(hidden_size=64, intermediate_size=128, num_hidden_layers=4))
    return store.path("models", "tiny")


def _dataset(store: Store) -> Path:
    if store.get("datasets", "rows") is None:
        with store.publish("datasets", "rows", {"max_token_id": VOCABULARY - 1}) as staging:
            write_arrow(staging / "train.arrow", packed_rows(_ROWS))
    return store.path("datasets", "rows")


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        weights: Hash of the exported model; empty if there is none.
        steps: The step events that count, by number: those of the last attempt that made each.
        lost: Steps that were made and had to be made again, at each change of attempts.
        cold_s: From the start of its first attempt to its first step.
    """

    weights: str
    steps: dict[int, TrainStep]
    lost: list[int]
    cold_s: float


def result_of(folder: RunFolder) -> Result:
    """Read what a run left."""
    events = [event for event in read_events(folder.events) if isinstance(event, TrainStep)]
    by_attempt: dict[int, list[TrainStep]] = {}
    for event in events:
        by_attempt.setdefault(event.attempt, []).append(event)
    steps: dict[int, TrainStep] = {}
    lost = []
    for number in sorted(by_attempt):
        first = min(event.step for event in by_attempt[number])
        if steps:
            lost.append(max(0, max(steps) - first + 1))
        steps = {step: event for step, event in steps.items() if step < first}
        steps |= {event.step: event for event in by_attempt[number]}
    weights = hashlib.sha256()
    shards = sorted(folder.model.glob("*.safetensors"))
    for shard in shards:
        weights.update(shard.read_bytes())
    started = json.loads((folder.attempt(1) / "attempt.json").read_text())["started"]
    cold = min((event.time for event in events), default=started) - started
    return Result(weights.hexdigest() if shards else "", steps, lost, cold)
