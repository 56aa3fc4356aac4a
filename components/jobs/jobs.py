"""Where a run's jobs are made: on this machine or in a cluster, and how the next one is numbered."""

from collections.abc import Collection
from typing import Any, Protocol

from components.cluster.choose import launcher_name
from components.cluster.job_state import Phase
from components.jobs.attempts import close_record, read_record
from components.jobs.describe import TaskSettings, describe_job
from components.jobs.history import Past
from components.jobs.job import TrainingJob, job_name
from components.jobs.launchers import Launcher
from components.jobs.launchers.local import LocalLauncher
from components.jobs.leftovers import stop_leftovers, wait_for_pods
from training.checkpoint.folders import newest_step
from training.config import RunConfig
from training.run_folder import RunFolder


class Jobs(Protocol):
    """Makes a run's jobs."""

    def next_attempt(self) -> int:
        """The number of the attempt to begin or to go on with; nothing else of the run still runs then."""
        ...

    def describe(self, number: int) -> TrainingJob:
        """The job of an attempt."""
        ...

    def launcher(self) -> Launcher:
        """A launcher for one job."""
        ...

    def where(self) -> dict[str, object]:
        """What a later process needs to find the job again."""
        ...

    def num_hosts(self) -> int | None:
        """How many machines there are; None: it is not known."""
        ...

    def unfit(self, hosts: Collection[str]) -> dict[str, str]:
        """Which of some machines are not to be used, as whoever looks after them says → why."""
        ...


def jobs_of(folder: RunFolder, config: RunConfig, task: TaskSettings, pipeline_job: str = "") -> Jobs:
    """The place that the configuration chooses.

    Args:
        folder: The run's.
        config: The run's.
        task: Settings of the KFP task.
        pipeline_job: Name of the pipeline job.

    Raises:
        UserError: There is no such place, or it cannot be reached.
    """
    name = launcher_name(config.cluster)
    return LocalJobs(folder, config) if name == "local" else ClusterJobs(folder, config, task, name, pipeline_job)


class LocalJobs:
    """Jobs as processes of this machine."""

    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        self._folder = folder
        self._config = config

    def next_attempt(self) -> int:
        """Always a new one: processes of a launcher that died cannot be followed."""
        _clear(self._folder)
        return max(self._folder.attempts(), default=0) + 1

    def describe(self, number: int) -> TrainingJob:
        """One node of this machine."""
        from training.device import processes_per_node  # imports torch, which a cluster's launcher does without

        parallel = self._config.parallel
        return TrainingJob(
            name=job_name(self._folder.run, number, parallel.num_nodes, self._folder.purpose),
            run_folder=self._folder.job_path,
            attempt=number,
            num_nodes=parallel.num_nodes,
            procs_per_node=parallel.procs_per_node or processes_per_node(),
        )

    def launcher(self) -> Launcher:
        """Starts processes."""
        return LocalLauncher()

    def where(self) -> dict[str, object]:
        """Nothing: processes are found by their command lines."""
        return {}

    def num_hosts(self) -> int | None:
        """This one."""
        return 1

    def unfit(self, hosts: Collection[str]) -> dict[str, str]:
        """Nobody says anything of this machine."""
        return {}


class ClusterJobs:
    """Jobs in a cluster.

    Args:
        folder: The run's.
        config: The run's.
        task: Settings of the KFP task.
        kind: `pytorchjob` or `trainjob`.
        pipeline_job: Name of the pipeline job.
    """

    def __init__(
        self, folder: RunFolder, config: RunConfig, task: TaskSettings, kind: str, pipeline_job: str
    ) -> None:
        # Here, because a run on one machine does without the Kubernetes client, which takes half a second.
        from components.cluster.client import connect
        from components.cluster.jobs import owner_reference
        from components.cluster.node_health import unhealthy_hosts
        from components.jobs.launchers.cluster import ClusterLauncher, own_pod

        self._folder = folder
        self._config = config
        self._task = task
        self._kind = kind
        self._pipeline_job = pipeline_job
        self._cluster = connect(config.cluster.namespace)
        self._launcher = ClusterLauncher
        self._unhealthy = unhealthy_hosts
        pod = own_pod(self._cluster)
        self._image = None if pod is None else _main_image(pod)
        self._owner: dict[str, Any] | None = None if pod is None else owner_reference(pod)

    def next_attempt(self) -> int:
        """The last one if its job may still be there: it is found, not launched again."""
        last = max(self._folder.attempts(), default=0)
        record = read_record(self._folder, last) if last else {}
        if record and "ended" not in record:
            if self._is_as_described(record) and self._goes_on(record):
                return last
            _clear(self._folder)
            has_begun = "in_place" not in record or (self._folder.attempt(last) / "nodes").is_dir()
            close_record(
                self._folder, record, "lost" if has_begun else "not_begun", **_past_of(self._folder, record)
            )
        else:
            _clear(self._folder)
        return last + 1

    def _is_as_described(self, record: dict[str, Any]) -> bool:
        """Whether an attempt's job is the one that would be made now: of the same kind, place and size."""
        job = self.describe(record.get("job_attempt", record["number"]))
        now = {"launcher": self._kind, "name": job.name, **_size(job), **self.where()}
        # It may have fewer nodes than are usual, where some were lost.
        usual = {**record, "num_nodes": record.get("usual_nodes", record.get("num_nodes", job.num_nodes))}
        return all(usual.get(key, value) == value for key, value in now.items())

    def _goes_on(self, record: dict[str, Any]) -> bool:
        """Whether an attempt without an end is to be taken up again, by its job's name."""
        phase = self._launcher(self._cluster, self._kind).phase(record["name"])
        if "in_place" in record and phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.GONE, Phase.STOPPING):
            # Its nodes may have left without an order; if they had begun, their ranks' words are kept.
            return False
        if phase in (Phase.SUCCEEDED, Phase.FAILED):
            # An end that an earlier pipeline job came to is not this one's.
            return bool(record.get("pipeline_job", "") == self._pipeline_job)
        if phase not in (Phase.GONE, Phase.STOPPING):
            return True
        # Killed before it asked for the job, or the job is gone: what ranks wrote tells which.
        wait_for_pods(self._folder)
        return not (self._folder.attempt(record["number"]) / "logs").is_dir()

    def describe(self, number: int) -> TrainingJob:
        """As many pods as the configuration says."""
        return describe_job(self._config, self._folder, number, self._task, image=self._image, owner=self._owner)

    def launcher(self) -> Launcher:
        """Creates a job."""
        return self._launcher(self._cluster, self._kind)

    def where(self) -> dict[str, object]:
        """The namespace."""
        return {"namespace": self._cluster.namespace}

    def num_hosts(self) -> int | None:
        """A cluster may make more machines at any time."""
        return None

    def unfit(self, hosts: Collection[str]) -> dict[str, str]:
        """Those of which HyperPod says so."""
        return self._unhealthy(self._cluster, hosts)


def _past_of(folder: RunFolder, record: dict[str, Any]) -> dict[str, Any]:
    """What an attempt whose launcher was lost has come to: it may have saved a lot."""
    if folder.purpose != "training":
        return {}
    saved_from = int(record.get("saved_from", 0))
    past = Past(int(record["number"]), "lost", saved_from=saved_from, saved=newest_step(folder.checkpoints))
    return {"past": past.as_record()}


def _clear(folder: RunFolder) -> None:
    stop_leftovers(folder)
    wait_for_pods(folder)


def _size(job: TrainingJob) -> dict[str, int]:
    return {"num_nodes": job.num_nodes, "procs_per_node": job.procs_per_node}


def _main_image(pod: Any) -> str | None:
    """The image that this pod's own step runs in."""
    containers = {container.name: container.image for container in pod.spec.containers}
    image: str | None = containers.get("main")
    return image
