"""A run's jobs on the suite's hosts."""

from collections.abc import Collection
from pathlib import Path

from components.cluster.job_state import Phase
from components.jobs.attempts import close_record, read_record
from components.jobs.job import PodSettings, TrainingJob, job_name
from components.jobs.launchers import Launcher
from tests.faults.hosts import read_hosts
from tests.faults.launcher import HostLauncher
from training.run_folder import RunFolder

_GRACE_S = 8
"""Of a job that is stopped."""


class HostJobs:
    """Makes them; satisfies `components.jobs.jobs.Jobs`.

    Args:
        folder: The run's.
        hosts: Folder of the hosts.
        env: More variables of every node.
    """

    def __init__(self, folder: RunFolder, hosts: Path, env: dict[str, str]) -> None:
        self._folder = folder
        self._hosts = hosts
        self._env = env

    def next_attempt(self) -> int:
        """The last one if its job still runs: it is found, not launched again."""
        last = max(self._folder.attempts(), default=0)
        record = read_record(self._folder, last) if last else {}
        if record and "ended" not in record:
            if HostLauncher(self._hosts).phase(record["name"]) is Phase.RUNNING:
                return last
            has_begun = "in_place" not in record or (self._folder.attempt(last) / "nodes").is_dir()
            close_record(self._folder, record, "lost" if has_begun else "not_begun")
        return last + 1

    def describe(self, number: int) -> TrainingJob:
        """As many nodes as the configuration says."""
        parallel = self._folder.config().parallel
        assert parallel.procs_per_node is not None
        return TrainingJob(
            name=job_name(self._folder.run, number, parallel.num_nodes),
            run_folder=self._folder.job_path,
            attempt=number,
            num_nodes=parallel.num_nodes,
            procs_per_node=parallel.procs_per_node,
            pods=PodSettings(image="none", grace_s=_GRACE_S),
        )

    def launcher(self) -> Launcher:
        """One for the hosts."""
        return HostLauncher(self._hosts, self._env)

    def where(self) -> dict[str, object]:
        """Nothing: jobs are found by their names."""
        return {}

    def num_hosts(self) -> int | None:
        """All of them, whether they answer or not."""
        return len(read_hosts(self._hosts))

    def unfit(self, hosts: Collection[str]) -> dict[str, str]:
        """Nobody looks after them."""
        return {}
