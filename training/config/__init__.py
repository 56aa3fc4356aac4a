"""`RunConfig`: the one typed description of a run, a file for each of its sections.

Every field says what it does under its name; `docs/configuration.md` is generated from here. How a config is
put together from recipe, overrides and pipeline parameters lives in `training.resolve`.
"""

from training.config.checkpoint import CheckpointConfig
from training.config.cluster import ClusterConfig, launcher_problems, one_node_only
from training.config.data import ColumnRole, DataConfig, DataSource, Format
from training.config.evaluation import ANSWER_MEASURES, EvaluationConfig
from training.config.model import ModelConfig
from training.config.registry import GateConfig, RegistryConfig
from training.config.resilience import ResilienceConfig
from training.config.run import RunConfig, check_world_size, too_many_nodes
from training.config.training import LoraConfig, ParallelConfig, TrainingConfig

__all__ = [
    "ANSWER_MEASURES",
    "CheckpointConfig",
    "ClusterConfig",
    "ColumnRole",
    "DataConfig",
    "DataSource",
    "EvaluationConfig",
    "Format",
    "GateConfig",
    "LoraConfig",
    "ModelConfig",
    "ParallelConfig",
    "RegistryConfig",
    "ResilienceConfig",
    "RunConfig",
    "TrainingConfig",
    "check_world_size",
    "launcher_problems",
    "one_node_only",
    "too_many_nodes",
]
