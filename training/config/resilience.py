"""The section `resilience`."""

from typing import Literal

from pydantic import Field

from training.config.section import Section


class ResilienceConfig(Section):
    """How faults are noticed, and what happens then."""

    max_attempts: int = Field(default=3, ge=1)
    """Attempts in a row that may end without a checkpoint newer than those before; after them the run ends. A
    preemption does not count, and a failure that trying again cannot mend (configuration, data) ends the run at
    once."""

    min_nodes: int | None = Field(default=None, ge=1)
    """Fewest nodes to go on with where those lost have no replacement. The global batch and the order of the
    samples stay the same. null: always `parallel.num_nodes`."""

    replacement_timeout_s: int = Field(default=300, ge=1)
    """Seconds that an attempt waits for a replacement of a lost node before it makes do with fewer, down to
    `min_nodes`."""

    exclude_for_s: int = Field(default=86_400, ge=0)
    """Seconds for which a node that is to blame for a fault is not used again. 0: nodes are never excluded."""

    nonfinite: Literal["stop", "skip"] = "stop"
    """What to do with a step whose loss or gradient is not finite a second time, after the run went back to its
    newest checkpoint: end the run, or leave that step's samples out."""

    health_checks: bool = True
    """Check each node before its ranks start, as `shardline doctor` does; one that fails is replaced."""

    deep_checks: bool = False
    """Before the first attempt of a run, let all its ranks compute the same and measure the network between
    every two nodes; a node that falls short is not used. Takes minutes."""

    health_policy: str | None = None
    """A YAML file with thresholds of the checks and what to do about each XID, for those that differ from the
    built-in ones."""

    hang_timeout_s: float | None = Field(default=600, gt=0)
    """Most seconds that a rank may take from one part of a step to the next (a micro-batch, the optimizer)
    before it counts as hung: the stacks of all ranks are written down, and they are killed. null: only
    `stall_timeout_s`."""

    stall_timeout_s: int | None = Field(default=1800, ge=1)
    """The same for what may take long: loading, the first step, a save, an evaluation, the export. null: no
    limit."""

    node_timeout_s: float = Field(default=60, gt=0)
    """Seconds without a sign of life from a node whose ranks had begun, after which it counts as lost."""

    straggler_ratio: float | None = Field(default=1.5, gt=1)
    """A rank counts as slow when its device takes so many times as long as the others' for the same computation,
    twice in a row. null: ranks are not compared."""

    preemption_notice: Literal["none", "aws"] = "none"
    """Who announces that a machine is about to be taken away. `aws`: the instance metadata of EC2. The ranks
    then save and leave in time."""

    queue_timeout_s: int | None = Field(default=None, ge=1)
    """Most seconds that an attempt may wait in a queue (Kueue) before the run fails. null: as long as it takes."""

    start_timeout_s: int | None = Field(default=1800, ge=1)
    """Most seconds from its admission until all pods of an attempt run: scheduling, new nodes, image pulls. null:
    no limit."""

    run_timeout_s: int | None = Field(default=None, ge=1)
    """Most seconds that an attempt may run. null: no limit."""

    heartbeat_timeout_s: int = Field(default=300, ge=5)
    """Seconds after which a cluster job that hears nothing of the `train` step saves and leaves."""
