"""Finds the jobs of runs in a cluster, of either kind, with their pods."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from components.cluster.client import TIMEOUT_S, Cluster, patiently
from components.cluster.errors import ClusterRefused
from components.cluster.job_state import Phase, phase_of
from components.cluster.jobs import list_jobs
from components.cluster.kinds import ATTEMPT_LABEL, KINDS, PURPOSE_LABEL, PYTORCHJOB, RUN_LABEL, JobKind
from components.cluster.probe import is_installed
from pipelines.jobs.names import suggest
from training.errors import UserError
from training.run_folder import JobPurpose


@dataclass(frozen=True)
class FoundJob:
    """A job of an attempt.

    Attributes:
        kind: Of the job.
        manifest: The job as the API server shows it.
        pods: Its pods that are there.
    """

    kind: JobKind
    manifest: dict[str, Any] = field(repr=False)
    pods: list[dict[str, Any]] = field(repr=False)

    @property
    def name(self) -> str:
        """Of the job."""
        return str(self.manifest["metadata"]["name"])

    @property
    def uid(self) -> str:
        """Tells it from a later job of the same name."""
        return str(self.manifest["metadata"]["uid"])

    @property
    def run(self) -> str:
        """The run's name."""
        return str(self.manifest["metadata"]["labels"][RUN_LABEL])

    @property
    def attempt(self) -> int:
        """Counted from 1."""
        number = self.manifest["metadata"]["labels"].get(ATTEMPT_LABEL, "")
        return int(number) if number.isdigit() else 1

    @property
    def num_nodes(self) -> int:
        """Pods that it should have."""
        spec = self.manifest["spec"]
        if self.kind is PYTORCHJOB:
            return sum(int(replica.get("replicas", 1)) for replica in spec["pytorchReplicaSpecs"].values())
        return int(spec.get("trainer", {}).get("numNodes", 1))

    @property
    def phase(self) -> Phase:
        """What has become of it."""
        return phase_of(self.kind, self.manifest, self.pods, self.num_nodes)

    @property
    def has_ended(self) -> bool:
        """Whether it succeeded or failed."""
        return self.phase in (Phase.SUCCEEDED, Phase.FAILED)

    @property
    def run_folder(self) -> str:
        """The job's folder in the run's as the pods see it, which is what their command ends with."""
        spec = self.manifest["spec"]
        if self.kind is PYTORCHJOB:
            replica = next(iter(spec["pytorchReplicaSpecs"].values()))
            command = replica["template"]["spec"]["containers"][0].get("command")
        else:
            command = spec.get("trainer", {}).get("command")
        last = str(command[-1]) if command else ""
        run = f"/runs/{self.run}"
        return last if last.endswith((run, f"{run}/evaluation")) else f"<store>{run}"


def find_jobs(cluster: Cluster, run: str | None = None, purpose: JobPurpose | None = "training") -> list[FoundJob]:
    """The jobs of a run, or of all runs, by run and attempt.

    Args:
        cluster: Where.
        run: None: all.
        purpose: Jobs of this purpose; None: of any.

    Raises:
        UserError: The cluster has neither kind of job, or does not let the user look.
        ClusterUnavailable: It does not answer.
    """
    found: list[tuple[JobKind, dict[str, Any]]] = []
    refusals: list[ClusterRefused] = []
    # Asked first, because a user with rights to one kind only is refused the other even if it is not there.
    kinds = [kind for kind in KINDS.values() if is_installed(cluster, kind)]
    if not kinds:
        raise UserError(
            "this cluster has neither PyTorchJobs nor TrainJobs, so no run trains there: check which cluster the "
            "kubeconfig names, or have the Kubeflow Training Operator installed (deploy/kubernetes/README.md)"
        )
    for kind in kinds:
        try:
            found += [(kind, job) for job in list_jobs(cluster, kind, run)]
        except ClusterRefused as error:
            refusals.append(error)
    if len(refusals) == len(kinds):
        raise refusals[0]
    if purpose is not None:
        found = [one for one in found if one[1]["metadata"]["labels"].get(PURPOSE_LABEL) == purpose]
    pods = _pods(cluster, run) if found else []
    jobs = [FoundJob(kind, job, _of(pods, kind, job["metadata"]["name"])) for kind, job in found]
    return sorted(jobs, key=lambda job: (job.run, job.attempt))


def jobs_of_run(cluster: Cluster, run: str, purpose: JobPurpose = "training") -> list[FoundJob]:
    """The jobs of a run, of which there is at least one.

    Args:
        cluster: Where.
        run: The run's name.
        purpose: Of the jobs.

    Raises:
        UserError: There is none; the message names the runs that there are.
        ClusterUnavailable: The cluster does not answer.
    """
    jobs = find_jobs(cluster, run, purpose)
    if jobs:
        return jobs
    if purpose == "evaluation":
        raise UserError(
            f"the run '{run}' has no job of its evaluation in the namespace '{cluster.namespace}' "
            f"({cluster.where}): it has one from the step evaluate on, if a model was not measured before"
        )
    raise UserError(no_such_run(cluster, run))


def no_such_run(cluster: Cluster, run: str) -> str:
    """A sentence that says that a run has no job, and which runs have."""
    runs = {job.run for job in find_jobs(cluster)}
    return (
        f"there is no job of the run '{run}' in the namespace '{cluster.namespace}' ({cluster.where}): "
        f"{suggest(run, runs)}; a run has a job from the step train on, until some time after its end"
    )


def grace_s(pods: Iterable[dict[str, Any]]) -> int:
    """Seconds that pods may take to save and leave."""
    return max((pod.get("spec", {}).get("terminationGracePeriodSeconds", 30) for pod in pods), default=30)


def _pods(cluster: Cluster, run: str | None) -> list[dict[str, Any]]:
    """All pods of runs in one request, which a table of many jobs would otherwise make for each."""
    answer = patiently(
        f"list the pods in the namespace '{cluster.namespace}'",
        lambda: cluster.core.list_namespaced_pod(
            cluster.namespace,
            label_selector=RUN_LABEL if run is None else f"{RUN_LABEL}={run}",
            _preload_content=False,
            _request_timeout=TIMEOUT_S,
        ),
        patience_s=15,
    )
    pods: list[dict[str, Any]] = json.loads(answer.data)["items"]
    return pods


def _of(pods: list[dict[str, Any]], kind: JobKind, job: str) -> list[dict[str, Any]]:
    return [pod for pod in pods if pod["metadata"].get("labels", {}).get(kind.pod_label) == job]
