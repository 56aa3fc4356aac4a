"""A trainer of a tiny model in a test's own ranks, and what it calls."""

import hashlib

import torch
from torch.utils._pytree import tree_leaves

from training.build import build_model
from training.checkpoint.state import training_state
from training.config import RunConfig
from training.data import PackedDataset
from training.model import load_weights
from training.optim import make_optimizer
from training.shards import local_part
from training.trainer import Trainer

CPU = torch.device("cpu")


def trainer_of(
    source, samples, lag=None, skipped=frozenset(), beat=lambda part, step: None, every_s=None, **training
):
    config = RunConfig.model_validate(
        {
            "model": {"name": "org/tiny"},
            "data": {"train": "org/data"},
            "training": {"precision": "fp32", "global_batch_size": 4, "learning_rate": 0.01, **training},
            "checkpoint": {"every_steps": 2 if every_s is None else 1000, "every_s": every_s},
            "evaluation": {"every_steps": 3},
        }
    )
    model = build_model(config, source, CPU, torch.float32)
    load_weights(model, source)
    optimizer = make_optimizer(model, config.training)
    dataset = PackedDataset(samples)
    return Trainer(
        config, model, optimizer, dataset, dataset, CPU, torch.float32, skipped=skipped, beat=beat, lag=lag
    )


def follow(trainer, stop_asked=lambda: False, on_step=lambda step: None, checkpointer=None, seen=None):
    """Whether the trainer finished, and all that it called, in order."""
    seen = [] if seen is None else seen

    def take_step(step):
        seen.append(("step", step.step, step.loss, step.grad_norm, step.num_supervised))
        on_step(step)

    def take_save(step, is_last):
        seen.append(("save", step, is_last))
        if checkpointer is not None:
            checkpointer.save(step, block=is_last)

    finished = trainer.run(
        on_step=take_step,
        on_evaluation=lambda e: seen.append(("evaluation", e.step, e.loss)),
        on_alert=lambda alert: seen.append(("alert", alert.rank, alert.host, alert.text)),
        save=take_save,
        save_wanted=lambda: False,
        before_update=lambda: None if checkpointer is None else checkpointer.wait_for_copy(),
        stop_asked=stop_asked,
    )
    return finished, seen


def digest(trainer):
    """Of this rank's weights and moments, to the bit."""
    total = hashlib.sha256()
    for leaf in tree_leaves(training_state(trainer.model, trainer.optimizer)):
        if isinstance(leaf, torch.Tensor):
            total.update(local_part(leaf).detach().contiguous().view(-1).view(torch.uint8).numpy())
    return total.hexdigest()
