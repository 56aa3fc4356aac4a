"""Runs a job in Kubernetes, as a PyTorchJob or a TrainJob."""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from components.cluster.client import REFUSED_S, TIMEOUT_S, Cluster, patiently
from components.cluster.errors import ClusterRefused, ClusterUnavailable
from components.cluster.job_state import (
    Phase,
    is_unplaced,
    node_rank,
    phase_of,
    pod_end,
    runs_or_ran,
    true_conditions,
    why_waiting,
)
from components.cluster.jobs import (
    LEFT_S,
    adopt_job,
    annotate_job,
    create_job,
    delete_job,
    get_job,
    grace_s,
    list_events,
)
from components.cluster.kinds import KINDS, PROGRESS, RUN_ID_LABEL, JobKind
from components.cluster.log_lines import LogLines
from components.cluster.logs import LogFollower
from components.cluster.pod_watch import PodWatch
from components.jobs.evidence import describe_ending
from components.jobs.job import TrainingJob
from components.jobs.launchers import Ending
from components.jobs.render.pytorchjob import render_pytorchjob
from components.jobs.render.trainjob import render_trainjob
from training.errors import UserError

_RENDER: dict[str, Callable[[TrainingJob, str], dict[str, Any]]] = {
    "PyTorchJob": render_pytorchjob,
    "TrainJob": render_trainjob,
}

_LOOK_S = 1.0
"""Between two requests for the job; its pods are watched."""

_PROGRESS_S = 10.0
"""Between two annotations of the newest step."""

_PATIENCE_S = 600.0
"""How long an API server may be away before the job is given up as lost."""

_OPERATOR_S = 30.0
"""How long after its pods a job may still be without an end of its own: the operator may be away, and a TrainJob
starts pods that failed again, which is for this project's own supervisor to decide."""

_LOGS_S = 30.0
"""To read the logs of pods that have ended to their end."""

_UNANSWERED_S = 10.0
"""How long a create whose answer was not waited for may still make a job: the operator's webhook takes so long."""

_REFRESH_S = 5.0
"""Between two lists of pods that ought to have left."""


class ClusterLauncher:
    """Runs one job in a cluster.

    Args:
        cluster: Where.
        kind: `pytorchjob` or `trainjob`.
    """

    forwards_logs = True
    poll_s = 0.3

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self.name = kind
        self._cluster = cluster
        self._kind: JobKind = KINDS[kind]
        self._job: TrainingJob | None = None
        self._uid: str | None = None
        self._seen: dict[str, Any] | None = None
        self._is_answered = True
        self._is_adopted = True
        self._looked = self._annotated = self._adopted = -_PATIENCE_S
        self._pods_ended: float | None = None
        self._stopping: float | None = None
        self._is_stuck = False
        self._suspended_pods: set[str] = set()
        self._progress: dict[str, object] | None = None
        self._watch: PodWatch | None = None
        self._logs: LogFollower | None = None
        self._lines: LogLines | None = None

    def submit(self, job: TrainingJob) -> dict[str, object]:
        """Create the job; one of its name that this run made before is adopted."""
        manifest = _RENDER[self._kind.kind](job, self._cluster.namespace)
        self._job = job  # before the request: an interruption right after it still finds what to stop
        self._is_answered = False
        try:
            # Between two attempts of a long training, a refusal that passes must not end it.
            created = create_job(self._cluster, self._kind, manifest, REFUSED_S if job.attempt > 1 else 0.0)
        except UserError:
            self._is_answered = True
            raise
        self._is_answered = True
        if created["metadata"].get("labels", {}).get(RUN_ID_LABEL) != job.run_id:
            self._job = None
            raise UserError(
                f"the {self._kind.kind} '{job.name}' in the namespace '{self._cluster.namespace}' belongs to "
                "another run of this name: give this run another name, or delete that job"
            )
        self._seen, self._uid = created, created["metadata"]["uid"]
        owner = job.scheduling.owner
        self._is_adopted = not owner or owner in created["metadata"].get("ownerReferences", [])
        self._adopt(job)
        self._follow(job)
        return {"job": job.name, "kind": self._kind.kind, "namespace": self._cluster.namespace}

    def phase(self, name: str) -> Phase:
        """How the job of a name stands, its pods left aside; STOPPING also where it had ended before."""
        job = get_job(self._cluster, self._kind, name, refused_s=REFUSED_S)
        leaves = job is not None and job["metadata"].get("deletionTimestamp")
        return Phase.STOPPING if leaves else phase_of(self._kind, job, [], 1)

    def poll(self) -> Phase:
        """Look at the job, at most once a second, and follow the logs of pods that have started."""
        job, watch = self._job, self._watch
        assert job is not None and watch is not None and self._logs is not None, "poll() before submit()"
        if time.monotonic() - self._looked >= _LOOK_S:
            seen = get_job(self._cluster, self._kind, job.name, _PATIENCE_S, REFUSED_S)
            # One that somebody else made under the name is not this one.
            self._seen = seen if seen and seen["metadata"]["uid"] == self._uid else None
            self._looked = time.monotonic()
            self._adopt(job)
        pods = self._pods(watch)
        for pod in pods:
            if runs_or_ran(self._kind, pod):
                self._logs.follow(pod["metadata"]["name"], pod["metadata"]["uid"])
        phase = phase_of(self._kind, self._seen, pods, job.num_nodes)
        if phase is Phase.QUEUED:
            # Of a job that was suspended while it ran, pods that were stopped tell nothing of its end.
            self._suspended_pods |= {pod["metadata"]["uid"] for pod in pods}
            self._pods_ended = None
        if phase is Phase.STOPPING:
            return self._leaves(job)
        return self._end_of(pods, job.num_nodes) or phase if phase is Phase.RUNNING else phase

    def _pods(self, watch: PodWatch) -> list[dict[str, Any]]:
        """The job's pods, without those from before it was suspended."""
        return [pod for pod in watch.pods() if pod["metadata"]["uid"] not in self._suspended_pods]

    def _adopt(self, job: TrainingJob) -> None:
        """Make the job die with this launcher's pod, or try again later: it is worth more than its tidiness."""
        owner = job.scheduling.owner
        if self._is_adopted or owner is None or time.monotonic() - self._adopted < _PROGRESS_S:
            return
        self._adopted = time.monotonic()
        try:
            adopt_job(self._cluster, self._kind, job.name, owner)
            self._is_adopted = True
        except ClusterUnavailable:
            pass
        except ClusterRefused as error:
            self._is_adopted = True
            print(f"the job is removed with an earlier pod of this step, not with this one: {error}", flush=True)

    def _leaves(self, job: TrainingJob) -> Phase:
        """STOPPING as long as the pods may take to leave, then GONE."""
        assert job.pods is not None
        self._stopping = self._stopping or time.monotonic()
        if time.monotonic() - self._stopping <= job.pods.grace_s + LEFT_S:
            return Phase.STOPPING
        self._is_stuck, self._seen = True, None
        print(
            f"the job '{job.name}' was deleted, but its pods do not leave; their machines may be lost", flush=True
        )
        return Phase.GONE

    def _end_of(self, pods: list[dict[str, Any]], num_nodes: int) -> Phase | None:
        """What the pods alone say of the job's end, once they have said so for a while."""
        codes = [end.exit_code for pod in pods if (end := pod_end(self._kind, pod))]
        failed = any(code != 0 for code in codes)
        if not failed and len(codes) < num_nodes:
            self._pods_ended = None
            return None
        self._pods_ended = self._pods_ended or time.monotonic()
        if time.monotonic() - self._pods_ended < _OPERATOR_S:
            return None
        return Phase.FAILED if failed else Phase.SUCCEEDED

    def waiting(self) -> list[str]:
        """What the scheduler, the kubelet or the operator say of pods that do not run."""
        assert self._watch is not None
        reasons = [reason for pod in self._watch.present() if (reason := why_waiting(pod))]
        return reasons or self._warnings()

    def lacks_machines(self) -> bool:
        """Whether the scheduler has found no machine for a pod."""
        assert self._watch is not None
        return any(is_unplaced(pod) for pod in self._watch.present())

    def report_progress(self, progress: dict[str, object]) -> None:
        """Annotate the job with the newest step, now and then; only `shardline status` misses it if that fails."""
        self._progress = progress
        if time.monotonic() - self._annotated >= _PROGRESS_S:
            self._annotate()

    def _annotate(self) -> None:
        progress, self._progress = self._progress, None
        if progress is None or self._job is None:
            return
        self._annotated = time.monotonic()
        try:
            annotate_job(self._cluster, self._kind, self._job.name, {PROGRESS: json.dumps(progress)})
        except (ClusterRefused, ClusterUnavailable) as error:
            print(f"the job's progress is not shown: {error}", flush=True)

    def ending(self) -> Ending:
        """What the pods, the job and the events say, once the last pod has ended and the logs are read."""
        assert self._job is not None and self._watch is not None and self._logs is not None
        assert self._job.pods is not None
        deadline = time.monotonic() + self._job.pods.grace_s + LEFT_S
        is_deleted = self._seen is None
        if self._seen is not None:
            self._annotate()
            # Where the pods alone told the end.
            is_deleted = stop_job(self._cluster, self._kind, self._seen)
        if not self._is_stuck and not self._settle(deadline) and self._seen is not None and not is_deleted:
            _delete_and_wait(self._cluster, self._kind, self._seen)
        if not self._logs.finish(_LOGS_S):
            print("some pods' logs could not be read to their end", flush=True)
        self._close()
        ends = [end for pod in self._pods(self._watch) if (end := pod_end(self._kind, pod))]
        said = [
            condition.get("message", "")
            for name, condition in (true_conditions(self._seen) if self._seen else {}).items()
            if name == self._kind.failed
        ]
        return describe_ending(ends, said, self._events(), gone=self._seen is None)

    def stop(self) -> None:
        """Delete the job, which sends its pods SIGTERM, and wait until the last of them is gone."""
        if self._job is None:
            return
        job = get_job(self._cluster, self._kind, self._job.name, refused_s=REFUSED_S)
        deadline = time.monotonic() + _UNANSWERED_S
        while job is None and not self._is_answered and time.monotonic() < deadline:
            time.sleep(_LOOK_S / 4)
            job = get_job(self._cluster, self._kind, self._job.name)
        # Where another run has the name, it was never this one's.
        if job is not None and job["metadata"].get("labels", {}).get(RUN_ID_LABEL) == self._job.run_id:
            stop_job(self._cluster, self._kind, job)
        if self._logs is not None:
            self._logs.finish(5)
        self._close()

    def _settle(self, deadline: float) -> bool:
        """After the job's end, wait until none of its pods can write any more; whether that came in time."""
        assert self._watch is not None
        refreshed = time.monotonic()
        while any(pod_end(self._kind, pod) is None for pod in self._watch.present()):
            if time.monotonic() > deadline:
                return False
            if time.monotonic() - refreshed > _REFRESH_S:
                self._watch.refresh()
                refreshed = time.monotonic()
            time.sleep(_LOOK_S / 4)
        return True

    def _follow(self, job: TrainingJob) -> None:
        self._watch = PodWatch(self._cluster, self._kind, job.name)
        self._watch.start()
        folder = job.run_folder / "attempts" / str(job.attempt) / "pods"
        self._lines = LogLines(self._rank_of, folder, _print)
        self._logs = LogFollower(self._cluster, self._kind.container, self._lines.take, self._has_ended)

    def _pod(self, name: str) -> dict[str, Any] | None:
        assert self._watch is not None
        return next((pod for pod in self._watch.pods() if pod["metadata"]["name"] == name), None)

    def _rank_of(self, name: str) -> int:
        pod = self._pod(name)
        return 0 if pod is None else node_rank(self._kind, pod)

    def _has_ended(self, name: str) -> bool:
        pod = self._pod(name)
        return pod is not None and pod_end(self._kind, pod) is not None

    def _events(self) -> list[dict[str, Any]]:
        assert self._job is not None and self._watch is not None
        names = {self._job.name, *(pod["metadata"]["name"] for pod in self._watch.pods())}
        try:
            return list_events(self._cluster, names)
        except (ClusterRefused, ClusterUnavailable):
            return []  # evidence, which must not hide what it is for

    def _warnings(self) -> list[str]:
        """The newest warnings about the job; of a job without pods, the only place that says why."""
        warnings = [event for event in self._events() if event.get("type") == "Warning"]
        texts = {f"{event['involvedObject']['name']}: {event.get('message', '')}" for event in warnings[-5:]}
        return sorted(texts)

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        if self._lines is not None:
            self._lines.close()


def stop_job(cluster: Cluster, kind: JobKind, job: dict[str, Any]) -> bool:
    """Delete a job that has not ended, and come back when its last pod is gone; whether there was such a job."""
    if {kind.succeeded, kind.failed} & set(true_conditions(job)):
        return False  # its pods have ended or are being ended, and its logs are worth keeping
    return _delete_and_wait(cluster, kind, job)


def _delete_and_wait(cluster: Cluster, kind: JobKind, job: dict[str, Any]) -> bool:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    if not delete_job(cluster, kind, name, uid=uid, refused_s=REFUSED_S):
        return False
    deadline = time.monotonic() + grace_s(job) + LEFT_S
    while (left := get_job(cluster, kind, name, refused_s=REFUSED_S)) and left["metadata"]["uid"] == uid:
        if time.monotonic() > deadline:
            print(f"the pods of '{name}' do not leave; their machines may be lost", flush=True)
            break
        time.sleep(_LOOK_S / 4)
    return True


def own_pod(cluster: Cluster) -> Any:
    """The pod of this process, as the client's model; None outside of one, or where it may not be read."""
    name = os.environ.get("KFP_POD_NAME") or os.environ.get("HOSTNAME", "")
    if "KUBERNETES_SERVICE_HOST" not in os.environ or not name:
        return None
    try:
        return patiently(
            f"read the pod '{name}'",
            lambda: cluster.core.read_namespaced_pod(name, cluster.namespace, _request_timeout=TIMEOUT_S),
        )
    except ClusterRefused:
        return None


def _print(text: str) -> None:
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:  # a console that knows ASCII only
        sys.stdout.write(text.encode("ascii", "backslashreplace").decode())
    sys.stdout.flush()
