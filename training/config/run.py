"""`RunConfig`: the sections together, and what has to fit between them."""

from typing import Any

from pydantic import model_validator

from training.config.checkpoint import CheckpointConfig
from training.config.cluster import ClusterConfig, launcher_problems, one_node_only
from training.config.data import DataConfig, source_problems
from training.config.evaluation import EvaluationConfig
from training.config.model import ModelConfig
from training.config.registry import RegistryConfig, gate_problems
from training.config.resilience import ResilienceConfig
from training.config.section import Section
from training.config.training import (
    LoraConfig,
    ParallelConfig,
    TrainingConfig,
    batch_problems,
    shard_group_problems,
)
from training.credentials import credentials_in


class RunConfig(Section):
    """The one description of a run."""

    model: ModelConfig
    data: DataConfig
    training: TrainingConfig = TrainingConfig()
    lora: LoraConfig = LoraConfig()
    parallel: ParallelConfig = ParallelConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    resilience: ResilienceConfig = ResilienceConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    registry: RegistryConfig = RegistryConfig()
    cluster: ClusterConfig = ClusterConfig()

    # Before anything else is checked, whose error would show what was given.
    @model_validator(mode="before")
    @classmethod
    def _refuse_credentials(cls, content: Any) -> Any:
        # Of this field the validator of its own has more to say.
        found = dict.fromkeys(where for where in credentials_in(content) if where != "registry.tracking_uri")
        if found:
            raise ValueError(
                f"{', '.join(found)} holds what looks like a password or a token: leave it out of the "
                "configuration, which is saved and shown; put it into a Kubernetes secret and refer to that in "
                "cluster.secrets as {VARIABLE: SECRET/KEY}, or set it in the environment of this machine"
            )
        return content

    @model_validator(mode="after")
    def _check_across_fields(self) -> "RunConfig":
        parallel, data = self.parallel, self.data
        # Before the number of ranks is known, it can be any multiple of the nodes.
        known = parallel.num_nodes * (parallel.procs_per_node or 1)
        problems = batch_problems(self.training, known)
        problems += shard_group_problems(parallel, known if parallel.procs_per_node else None)
        if self.model.max_context is not None and data.sequence_length > self.model.max_context:
            problems.append(
                f"data.sequence_length is {data.sequence_length}, but model.max_context allows at most "
                f"{self.model.max_context}"
            )
        if data.heldout is None and data.heldout_fraction == 0:
            problems.append(
                "there is nothing to evaluate on: set data.heldout to a file, or data.heldout_fraction above 0"
            )
        problems += source_problems(data)
        problems += gate_problems(self.registry.gate, self.evaluation)
        if self.cluster.launcher == "local":
            problems += too_many_nodes(self)
        problems += launcher_problems(self.cluster)
        problems += _lora_problems(self)
        problems += _resilience_problems(self)
        if self.evaluation.max_samples is not None and self.evaluation.every_steps is None:
            problems.append(
                f"evaluation.max_samples is {self.evaluation.max_samples}, but it has a meaning only with "
                "evaluation.every_steps: set that too"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self


def too_many_nodes(config: RunConfig) -> list[str]:
    """What a launcher that has one node cannot take of a run's jobs, as sentences."""
    sizes = {"parallel": config.parallel.num_nodes, "evaluation": config.evaluation.num_nodes}
    return [one_node_only(num_nodes, section) for section, num_nodes in sizes.items() if num_nodes > 1]


def check_world_size(config: RunConfig, world_size: int) -> None:
    """Check that a number of ranks can form the mesh and share the global batch.

    Args:
        config: The run.
        world_size: Ranks in all.

    Raises:
        ValueError: Names the fields that do not fit, and values that would.
    """
    problems = batch_problems(config.training, world_size) + shard_group_problems(config.parallel, world_size)
    if problems:
        raise ValueError("\n".join(problems))


def _resilience_problems(config: RunConfig) -> list[str]:
    fewest, usual = config.resilience.min_nodes, config.parallel.num_nodes
    if fewest is None or fewest <= usual:
        return []
    return [
        f"resilience.min_nodes is {fewest}, but the run has {usual} node(s): set it to at most that, or raise "
        "parallel.num_nodes"
    ]


def _lora_problems(config: RunConfig) -> list[str]:
    if config.training.method != "lora":
        changed = [f"lora.{field}" for field, value in config.lora if value != getattr(LoraConfig(), field)]
        return [
            f"{field} is set, but it has a meaning only with training.method lora, not {config.training.method}"
            for field in changed
        ]
    if config.model.init == "random":
        return ["model.init is random, but training.method lora freezes the model: set training.method to full"]
    if config.model.resize_vocabulary and config.lora.export == "adapter":
        return [
            "model.resize_vocabulary is true, but an adapter has no embeddings for new tokens: set lora.export to "
            "merged, training.method to full, or model.resize_vocabulary to false"
        ]
    return []
