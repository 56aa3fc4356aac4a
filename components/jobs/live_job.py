"""A job whose nodes run attempt after attempt, as they are ordered."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from components.jobs.attempts import read_record, write_record
from components.jobs.job import TrainingJob
from components.jobs.jobs import Jobs
from components.jobs.launchers import Launcher
from training.guard.place import Place
from training.orders import Orders
from training.run_folder import RunFolder


@dataclass
class LiveJob:
    """A job that was made, or found, and what is known of it.

    Attributes:
        folder: The run's, seen from the job.
        job: Its description; `job.attempt` is the first that it ran.
        launcher: Of it.
        record: Of the attempt that it runs now.
        usual_nodes: Nodes that the configuration asks for.
        places: Its nodes, by their number, as far as they have told.
    """

    folder: RunFolder
    job: TrainingJob
    launcher: Launcher
    record: dict[str, Any]
    usual_nodes: int
    places: Mapping[int, Place] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """Of the attempt that it runs now."""
        return int(self.record["number"])

    def has_begun(self) -> bool:
        """Whether a node has begun the attempt that it was ordered to run in place."""
        return "in_place" not in self.record or (self.folder.attempt(self.number) / "nodes").is_dir()

    def go_on(self, more: Mapping[str, Any]) -> None:
        """Run the next attempt in the same place.

        Args:
            more: To be kept in the attempt's record.
        """
        number = self.number + 1
        kept = {name: self.record[name] for name in _KEPT if name in self.record}
        self.record = {**kept, "number": number, "in_place": True, "started": time.time(), **more}
        # Before the order: a launcher that is killed after it must know of the attempt.
        write_record(self.folder, self.record)
        Orders(self.folder.job_path).give(number)

    def submit(self) -> None:
        """Make the job, or find it."""
        # From before the submit: a launcher that is killed right after it must find the job again.
        write_record(self.folder, self.record)
        # Before the job is there, so that its nodes do not take an older order for theirs.
        Orders(self.folder.job_path).give(self.number)
        self.record = {**self.record, **self.launcher.submit(self.job)}
        write_record(self.folder, self.record)


_KEPT = (
    *("launcher", "name", "namespace", "job_attempt", "num_nodes", "usual_nodes", "procs_per_node"),
    "pipeline_job",
)
"""Of an attempt's record, in that of the next one in the same place."""


def new_job(
    folder: RunFolder, jobs: Jobs, *, num_nodes: int | None, excluded: tuple[str, ...], more: Mapping[str, Any]
) -> LiveJob:
    """Describe the job of the next attempt, or of the one that a launcher before left; it is not made yet.

    Args:
        folder: The run's, seen from the job.
        jobs: Where it is made.
        num_nodes: Fewer than the configuration says; None: as many.
        excluded: Machines that it must not use.
        more: To be kept in the attempt's record.
    """
    number = jobs.next_attempt()
    found = read_record(folder, number)
    first = int(found.get("job_attempt", number))
    described = jobs.describe(first)
    pods = None if described.pods is None else replace(described.pods, excluded_hosts=excluded)
    job = replace(described, num_nodes=found.get("num_nodes", num_nodes or described.num_nodes), pods=pods)
    launcher = jobs.launcher()
    record: dict[str, Any] = {
        "number": number,
        "job_attempt": first,
        "launcher": launcher.name,
        "name": job.name,
        "num_nodes": job.num_nodes,
        "usual_nodes": described.num_nodes,
        "procs_per_node": job.procs_per_node,
        "started": time.time(),
        "phases": {},
        **more,
        **{name: found[name] for name in _FOUND if name in found},
        **jobs.where(),
    }
    return LiveJob(folder, job, launcher, record, described.num_nodes)


_FOUND = ("started", "phases", "in_place", "saved_from")
"""What of a record that is found stays as it is."""
