"""What the time of a run is sorted into."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

Bucket = Literal[
    "queue",
    "start",
    "checks",
    "rendezvous",
    "init",
    "restore",
    "compile",
    "data_wait",
    "step",
    "evaluation",
    "save_stall",
    "export",
    "redone",
    "hang",
    "recovery",
    "stopped",
]

BUCKETS: tuple[Bucket, ...] = get_args(Bucket)
"""In the order of a run's life, what goes well before what does not."""

MEANINGS: Mapping[Bucket, str] = {
    "queue": "the job waits for its queue to admit it",
    "start": "pods or processes start, and import",
    "checks": "the nodes check their machines before the ranks meet",
    "rendezvous": "the nodes wait for each other",
    "init": "the model is built and its weights are loaded",
    "restore": "a checkpoint is chosen, verified and loaded",
    "compile": "the first step of an attempt, beyond the median of those after it",
    "data_wait": "the slowest rank waits for samples",
    "step": "steps that count",
    "evaluation": "the held-out loss is taken while training",
    "save_stall": "training is held up by a save",
    "export": "the tuned model is written, and the ranks leave",
    "redone": "steps that are lost: computed again later, left out, or cut off by the attempt's end",
    "hang": "nothing moves: from the last sign of life to the kill",
    "recovery": "from a failure to the start of the next attempt",
    "stopped": "the run was asked to stop, or nobody looks after it",
}

PER_SECOND = 1_000_000
"""Microseconds."""


class Interval(NamedTuple):
    """A piece of a run's life.

    Attributes:
        start: In microseconds since the epoch: whole numbers, so that sums are exact.
        end: Likewise.
        bucket: What it was spent on.
        attempt: The attempt that it belongs to; what comes after an attempt's end belongs to it too.
        step: The step that was worked on, or was to come next; None before the first of the attempt was done.
    """

    start: int
    end: int
    bucket: Bucket
    attempt: int
    step: int | None = None

    @property
    def length(self) -> int:
        """In microseconds."""
        return self.end - self.start

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.length / PER_SECOND


@dataclass(frozen=True)
class Totals:
    """How much of a run's life lies in each bucket.

    Attributes:
        start: Of the first attempt, in microseconds since the epoch.
        end: Of the run, or now.
        microseconds: By bucket; those without time are left out.
        num_attempts: So far.
    """

    start: int
    end: int
    microseconds: Mapping[Bucket, int]
    num_attempts: int

    @property
    def wall_s(self) -> float:
        """From the first attempt's start to the run's end, or until now."""
        return (self.end - self.start) / PER_SECOND

    @property
    def seconds(self) -> dict[Bucket, float]:
        """By bucket, in the order of `BUCKETS`; those without time are left out."""
        return {
            bucket: self.microseconds[bucket] / PER_SECOND for bucket in BUCKETS if bucket in self.microseconds
        }

    @property
    def goodput(self) -> float:
        """Time of the steps that count ÷ wall time since the job's start; 0 without any time.

        It is the share that ByteRobust calls effective training time ratio (arXiv 2509.16293). Waiting for data,
        saves and evaluations do not count as productive, so it is never higher than theirs.
        """
        wall = self.end - self.start
        return self.microseconds.get("step", 0) / wall if wall else 0.0

    def share(self, bucket: Bucket) -> float:
        """Of the wall time; 0 without any."""
        wall = self.end - self.start
        return self.microseconds.get(bucket, 0) / wall if wall else 0.0
