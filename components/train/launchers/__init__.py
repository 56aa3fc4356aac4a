"""Ways to run a training job, behind one protocol."""

from enum import Enum
from typing import Protocol

from components.train.job import TrainingJob


class JobState(Enum):
    """What has become of a job."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Launcher(Protocol):
    """Runs one job."""

    name: str
    """Of the launcher, for records."""

    def submit(self, job: TrainingJob) -> dict[str, object]:
        """Start a job; returns what a later process needs to find it again, as JSON values."""
        ...

    def poll(self) -> JobState:
        """Look at the job once, without waiting."""
        ...

    def exit_code(self) -> int | None:
        """The exit code of the job's first failing node, once it has failed and where it is known."""
        ...

    def stop(self) -> None:
        """Ask the job to save and leave, and come back when it is gone."""
        ...
