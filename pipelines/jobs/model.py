"""A run as people look at it: its attempts, how far the newest is, and what holds it up."""

import math
from dataclasses import dataclass

from components.cluster.job_state import Phase

_UNENDED = {Phase.QUEUED.value, Phase.STARTING.value, Phase.RUNNING.value, Phase.STOPPING.value}


@dataclass(frozen=True)
class AttemptView:
    """One attempt of a run.

    Attributes:
        number: Counted from 1.
        phase: `queued`, `starting`, `running`, `stopping`, `succeeded`, `failed`, or `gone` where its job was
            deleted; of a run's folder also `stopped` and `lost`.
        kind: `PyTorchJob`, `TrainJob`, or `local`.
        job: Name of the job.
        num_nodes: Pods that it should have.
        pods_ready: Pods that are ready; None where the attempt has ended, or has no pods.
        started: When it was made, in seconds since the epoch; likewise `ended`, None before the end.
        ended: See `started`.
        step: The newest step that was told of; None before the first, as the following.
        num_steps: Steps of the whole run.
        loss: Of that step.
        tokens_per_s: Of all ranks together.
        seconds_left: Until the last step, as of `told`.
        told: When the step was told of.
        reasons: What it waits for, or why it failed, in the words of the cluster or the ranks.
    """

    number: int
    phase: str
    kind: str = ""
    job: str = ""
    num_nodes: int = 1
    pods_ready: int | None = None
    started: float | None = None
    ended: float | None = None
    step: int | None = None
    num_steps: int | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    seconds_left: float | None = None
    told: float | None = None
    reasons: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self.phase not in _UNENDED

    def eta_s(self, now: float) -> float | None:
        """Seconds until the last step; None where nothing is known, or nothing more comes."""
        if self.has_ended or self.seconds_left is None or not math.isfinite(self.seconds_left):
            return None
        return max(0.0, self.seconds_left - max(0.0, now - (self.told or now)))


@dataclass(frozen=True)
class RunView:
    """A run at one moment; what it says of progress is the newest attempt's.

    Attributes:
        run: Its name.
        where: The namespace or the store that it was found in, for people.
        attempts: In their order.
        stage: The step of the graph that runs, where that is known.
        ended_at: The step of the graph that the run did not get past, where that is known.
        stopped: Whether it was stopped there, and did not fail.
        reasons: What is said of the run beside its attempts: how Kubeflow knows it, why a step failed.
        ended: Whether nothing more comes of the run, as far as can be seen here.
        succeeded: Whether it ended well; None before its end.
    """

    run: str
    where: str
    attempts: tuple[AttemptView, ...]
    stage: str = ""
    ended_at: str = ""
    stopped: bool = False
    reasons: tuple[str, ...] = ()
    ended: bool = False
    succeeded: bool | None = None

    @property
    def newest(self) -> AttemptView | None:
        """The newest attempt; None before the first."""
        return self.attempts[-1] if self.attempts else None

    @property
    def phase(self) -> str:
        """Of the newest attempt; empty before the first."""
        return self.newest.phase if self.newest else ""

    @property
    def step(self) -> int | None:
        """The newest step; None before the first."""
        return self.newest.step if self.newest else None

    @property
    def num_steps(self) -> int | None:
        """Steps of the whole run."""
        return self.newest.num_steps if self.newest else None

    @property
    def loss(self) -> float | None:
        """Of the newest step."""
        return self.newest.loss if self.newest else None

    @property
    def tokens_per_s(self) -> float | None:
        """Of all ranks together, in the newest step."""
        return self.newest.tokens_per_s if self.newest else None

    @property
    def seconds_left(self) -> float | None:
        """Until the last step, as of the newest."""
        return self.newest.seconds_left if self.newest else None
