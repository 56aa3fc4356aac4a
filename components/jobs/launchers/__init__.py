"""Ways to run a training job, behind one protocol."""

from dataclasses import dataclass
from typing import Protocol

from components.cluster.job_state import Phase
from components.jobs.job import TrainingJob


@dataclass(frozen=True)
class Ending:
    """How a job ended, as its launcher saw it from outside.

    Attributes:
        what: Class of the incident, where the launcher knows it better than the ranks; see `training.events`.
        exit_code: Of the first node that failed, where it is known.
        node: Which one, for people.
        host: The machine that it ran on.
        evidence: For people: reasons and events, which add to the ranks' own words.
        log: The end of the node's log, for where the ranks left no words.
    """

    what: str | None = None
    exit_code: int | None = None
    node: str = ""
    host: str = ""
    evidence: str = ""
    log: str = ""


class Launcher(Protocol):
    """Runs one job."""

    name: str
    """Of the launcher, for records."""

    forwards_logs: bool
    """Whether what the ranks print shows in this process's output."""

    poll_s: float
    """Seconds between two looks at the job."""

    def submit(self, job: TrainingJob) -> dict[str, object]:
        """Start a job; returns what people may want to know of it, as JSON values."""
        ...

    def poll(self) -> Phase:
        """Look at the job once, without waiting for anything to happen to it."""
        ...

    def waiting(self) -> list[str]:
        """Why the job does not run yet, in the words of what it waits for."""
        ...

    def lacks_machines(self) -> bool:
        """Whether a job that starts waits for a machine, and not for what comes after."""
        ...

    def report_progress(self, progress: dict[str, object]) -> None:
        """Show the newest step where people look for the job."""
        ...

    def ending(self) -> Ending:
        """How the job ended, once it has; waits a little for what is still on its way."""
        ...

    def stop(self) -> None:
        """Ask the job to save and leave, and come back when it is gone."""
        ...
