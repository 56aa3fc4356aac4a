"""The peers: transformers' Trainer and TRL's SFTTrainer under torchrun, each in its best setting."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.hyperparameters import Hyperparameters
from benchmarks.result import Result
from benchmarks.torchrun import torchrun
from benchmarks.workload import Work, peer_documents


@dataclass(frozen=True)
class Setting:
    """How a peer is run.

    Attributes:
        peer: Its trainer.
        padding_free: Documents one after another, kept apart by their position ids; else padded to one length.
        arguments: Further arguments of `TrainingArguments`.
        environment: Further environment variables.
    """

    peer: Literal["trainer", "trl"]
    padding_free: bool
    arguments: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


FSDP2 = {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}


def train(work: Work, hyper: Hyperparameters, precision: str, root: Path, setting: Setting) -> Result:
    """Train a peer on the work.

    Args:
        work: What to train on.
        hyper: As all sides.
        precision: fp32 or bf16.
        root: Empty folder for its files.
        setting: How to run it.

    Raises:
        RuntimeError: It failed; with its log.
    """
    world_size = len(work.steps[0])
    job = {
        **asdict(setting),
        "model": str(work.model),
        "documents": peer_documents(work),
        "arguments": {**_arguments(work, hyper, precision, root), **setting.arguments},
    }
    job_file = root / "job.json"
    job_file.write_text(json.dumps(job))
    torchrun("benchmarks.peer_rank", str(job_file), world_size, setting.environment)
    ranks = [json.loads((root / f"rank-{rank}.json").read_text()) for rank in range(world_size)]
    steps = ranks[0]["steps"]
    return Result(
        [step["loss"] for step in steps],
        [step["seconds"] for step in steps],
        max(rank["peak_bytes"] for rank in ranks),
    )


def _arguments(work: Work, hyper: Hyperparameters, precision: str, root: Path) -> dict[str, Any]:
    return {
        "output_dir": str(root / "output"),
        "max_steps": len(work.steps),
        "per_device_train_batch_size": len(work.steps[0][0]),
        "train_sampling_strategy": "sequential",
        "optim": "adamw_torch_fused",
        "learning_rate": hyper.learning_rate,
        "lr_scheduler_type": "constant",
        "adam_beta1": hyper.beta1,
        "adam_beta2": hyper.beta2,
        "adam_epsilon": hyper.epsilon,
        "weight_decay": hyper.weight_decay,
        "max_grad_norm": hyper.max_grad_norm,
        "seed": hyper.seed,
        "bf16": precision == "bf16",
        # TRL's default is to recompute activations, which is slower.
        "gradient_checkpointing": False,
        "use_cpu": True,
        "ddp_backend": "gloo",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
