"""A small model with its optimizer, and savers of its state, for tests of checkpoints."""

import hashlib

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tests.runs import as_sample, packed_rows
from training.build import build_model
from training.checkpoint.checkpointer import Checkpointer
from training.checkpoint.state import training_state
from training.config import CheckpointConfig, RunConfig
from training.data import collate
from training.head import SummedLoss
from training.model import load_weights
from training.optim import make_optimizer

CPU = torch.device("cpu")
IDENTITY = {"model": "m", "dataset": "d"}


def set_up(folder, **training):
    config = RunConfig.model_validate(
        {
            "model": {"name": "org/tiny"},
            "data": {"train": "org/data"},
            "training": {"precision": "fp32", "learning_rate": 0.01, **training},
        }
    )
    model = build_model(config, folder, CPU, torch.float32)
    load_weights(model, folder)
    return model, make_optimizer(model, config.training)


def step(model, optimizer, seed, before_update=lambda: None):
    batch = collate([as_sample(packed_rows(1, seed=seed + dist.get_rank())[0])], CPU)
    SummedLoss(model)(batch).backward()
    before_update()
    optimizer.step()
    optimizer.zero_grad()


def digest(model, optimizer):
    """One hash of all weights and moments, whatever the number of ranks that hold them."""
    state = training_state(model, optimizer)
    found = hashlib.sha256()
    for name, value in sorted(_flat(state)):
        exact = value.float()  # float8 has no collectives
        found.update(name.encode())
        found.update((exact.full_tensor() if isinstance(exact, DTensor) else exact).numpy().tobytes())
    return found.hexdigest()


def _flat(state, prefix=""):
    for name, value in state.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif torch.is_tensor(value):
            yield f"{prefix}{name}", value


def saver(folder, model, optimizer, tell=lambda event: None, local=None, **config):
    settings = CheckpointConfig.model_validate(config)
    return Checkpointer(folder, model, optimizer, IDENTITY, settings, attempt=1, tell=tell, local=local)
