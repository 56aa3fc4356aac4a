"""What a job is to bring about."""

from collections.abc import Callable
from dataclasses import dataclass

from training.checkpoint.folders import newest_step
from training.config import RunConfig
from training.run_folder import RunFolder


@dataclass(frozen=True)
class Work:
    """What a job is to bring about.

    Attributes:
        folder: The run's, seen from the job.
        config: The run's, with the sizes of this job.
        is_done: Whether the ranks have made what they are for; asked after each attempt.
        doing: What is done with the run, for people: `trained`.
    """

    folder: RunFolder
    config: RunConfig
    is_done: Callable[[], bool]
    doing: str

    def saved_step(self) -> int:
        """Step of the newest checkpoint; 0 if there is none, as in all jobs but the training's."""
        return newest_step(self.folder.checkpoints) if self.folder.purpose == "training" else 0
