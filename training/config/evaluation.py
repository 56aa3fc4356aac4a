"""The section `evaluation`."""

from typing import Literal

from pydantic import Field

from training.config.section import Section

ANSWER_MEASURES = ("exact_match", "rougeL")
"""What is measured of answers to held-out prompts; higher is better, from 0 to 1."""


class EvaluationConfig(Section):
    """How base model, tuned model and champion are compared."""

    every_steps: int | None = Field(default=None, ge=1)
    """Also take the held-out loss while training, every so many steps. Unset: only before and after."""

    max_samples: int | None = Field(default=None, ge=1)
    """Most held-out samples for that; the first of them are taken. Unset: all."""

    num_generations: int = Field(default=6, ge=0)
    """Held-out prompts whose answers stand side by side in the report. Rows of the format text ask nothing."""

    num_scored: int = Field(default=64, ge=0)
    """Held-out prompts whose answers are compared with the reference: exact match and ROUGE-L. 0: none."""

    max_new_tokens: int = Field(default=96, ge=1)
    """Longest answer, in tokens."""

    tasks: tuple[str, ...] = ()
    """Tasks of lm-eval that every model is measured on: names, or YAML files of tasks of one's own. They need the
    package lm-eval."""

    task_limit: int | None = Field(default=None, ge=1)
    """Most examples of each task. Unset: all."""

    num_fewshot: int | None = Field(default=None, ge=0)
    """Examples that stand before each question of a task. Unset: as the task says."""

    champion: bool = True
    """Measure the version that holds `registry.alias` too, on the same held-out rows and tasks."""

    num_nodes: int = Field(default=1, ge=1, le=10_000)
    """Nodes of the evaluation, which is a job of `cluster.launcher` as the training is."""

    procs_per_node: int | None = Field(default=None, ge=1, le=1024)
    """Ranks on each of them. Unset: as `parallel.procs_per_node`."""

    sharding: Literal["auto", "none", "full"] = "auto"
    """`none` gives every rank a whole model; `full` shards it over all ranks, for a model that does not fit one
    device. `auto`: by the memory of a device."""
