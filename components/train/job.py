"""The neutral description of one attempt's job, which every launcher understands."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class TrainingJob:
    """One attempt at a run.

    Attributes:
        name: `<run>-<attempt>`; the same attempt always has the same name.
        run_folder: All that the ranks need to know.
        attempt: Counted from 1.
        num_nodes: Nodes, each of which runs `python -m training.node <run folder>`.
        procs_per_node: Ranks on a node.
        env: Environment of every node, besides what the launcher sets for torchrun.
    """

    name: str
    run_folder: Path
    attempt: int
    num_nodes: int
    procs_per_node: int
    env: dict[str, str] = field(default_factory=dict)
