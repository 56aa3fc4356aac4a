"""The sections `checkpoint` and `resilience`."""

from pydantic import Field

from training.config.section import Section


class CheckpointConfig(Section):
    """When the training state is saved."""

    every_steps: int = Field(default=100, ge=1)
    """Steps between checkpoints; one more is saved when the run is asked to stop."""

    asynchronous: bool = True
    """Write checkpoints while training goes on; a step waits only until the state is copied to host memory. That
    copy takes as much memory as the state itself."""

    keep: int = Field(default=2, ge=1)
    """Newest checkpoints that are kept while the run goes on."""

    keep_after_finish: bool = False
    """Keep checkpoints when the run has finished. They are several times the model's size, and the exported
    model does not need them."""


class ResilienceConfig(Section):
    """What happens when an attempt fails."""

    max_attempts: int = Field(default=2, ge=1)
    """Attempts in all. A failure that trying again cannot mend (configuration, data) ends the run at once."""

    queue_timeout_s: int | None = Field(default=None, ge=1)
    """Most seconds that an attempt may wait in a queue (Kueue) before the run fails. null: as long as it takes."""

    start_timeout_s: int | None = Field(default=1800, ge=1)
    """Most seconds from its admission until all pods of an attempt run: scheduling, new nodes, image pulls. null:
    no limit."""

    run_timeout_s: int | None = Field(default=None, ge=1)
    """Most seconds that an attempt may run. null: no limit."""

    stall_timeout_s: int | None = Field(default=1800, ge=1)
    """Most seconds that a running attempt may say nothing, neither a step nor a save, before it is stopped and
    counts as failed. null: no limit."""

    heartbeat_timeout_s: int = Field(default=300, ge=5)
    """Seconds after which a cluster job that hears nothing of the `train` step saves and leaves."""
