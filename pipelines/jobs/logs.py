"""Prints what the pods of a job write, each line with its rank."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from components.cluster.client import TIMEOUT_S, Cluster
from components.cluster.errors import ClusterRefused, api_errors
from components.cluster.job_state import Phase, node_rank, phase_of, pod_end, runs_or_ran, why_waiting
from components.cluster.jobs import get_job
from components.cluster.log_lines import LogLines, with_rank
from components.cluster.logs import LogFollower
from components.cluster.pod_watch import PodWatch
from components.cluster.streams import lines
from pipelines.jobs.lookup import FoundJob, grace_s, jobs_of_run
from training.errors import UserError
from training.run_folder import JobPurpose

_LOOK_S = 2.0
"""Between two requests for a job whose pods are watched."""

_QUIET_S = 0.5

_PATIENCE_S = 600.0
"""How long an API server may be away."""

_LEFT_S = 30.0
"""Beyond the pods' own grace, for a job's pods to end after it."""

_READ_S = 3600.0
"""To read the logs of pods that have ended to their end, at the pace at which they are printed."""

_AHEAD = 1000
"""Batches of lines that are read before they are printed; a slow terminal holds the rest up."""

_CHUNK = 2**16

Write = Callable[[str], None]


def choose_attempt(cluster: Cluster, run: str, attempt: int | None, purpose: JobPurpose = "training") -> FoundJob:
    """The job of an attempt of a run, or of the newest one.

    Args:
        cluster: Where.
        run: The run's name.
        attempt: None: the newest.
        purpose: Of the job.

    Raises:
        UserError: There is no such run or attempt; the message says what there is.
        ClusterUnavailable: The cluster does not answer.
    """
    jobs = jobs_of_run(cluster, run, purpose)
    if attempt is None:
        return jobs[-1]
    found = next((job for job in jobs if job.attempt == attempt), None)
    if found is None:
        raise UserError(
            f"the run '{run}' has no job of attempt {attempt} in the namespace '{cluster.namespace}': it has "
            f"those of {', '.join(str(job.attempt) for job in jobs)}"
            + (f"; {_copies(jobs[-1], attempt)}" if attempt < jobs[-1].attempt else "")
        )
    return found


def print_logs(
    cluster: Cluster, job: FoundJob, write: Write, say: Write, *, node: int | None = None, tail: int | None = None
) -> None:
    """Print what the pods have written so far, pod after pod in the order of their ranks.

    Args:
        cluster: Where.
        job: Whose pods.
        write: Prints a text of whole lines.
        say: Prints a line about what there is no log of.
        node: Only this node's.
        tail: Only the last lines of each.

    Raises:
        UserError: There is no such node, or no pod is left.
        ClusterUnavailable: The cluster does not answer.
    """
    _check_node(job, node)
    wanted = range(job.num_nodes) if node is None else (node,)
    pods = {node_rank(job.kind, pod): pod for pod in job.pods}
    missing = [rank for rank in wanted if rank not in pods]
    if len(missing) == len(wanted):
        raise UserError(_nothing_left(job, node))
    for rank in wanted:
        if rank in pods and runs_or_ran(job.kind, pods[rank]):
            try:
                _print_pod(cluster, job, pods[rank], write, tail)
            except ClusterRefused as error:
                if error.status != 404:
                    raise
                missing.append(rank)  # it went between the two requests
        elif rank in pods:
            say(f"node {rank} has not started: {why_waiting(pods[rank]) or 'its pod is being prepared'}")
    if missing:
        say(f"there is no pod of node {', '.join(map(str, sorted(missing)))}; {_copies(job, job.attempt)}")


def follow_logs(cluster: Cluster, job: FoundJob, write: Write, say: Write, *, node: int | None = None) -> None:
    """Print what the pods have written and write, as it comes, until the job has ended.

    Args:
        cluster: Where.
        job: Whose pods.
        write: Prints a text of whole lines.
        say: Prints a line about what it waits for.
        node: Only this node's.

    Raises:
        UserError: There is no such node, or the job has ended and no pod is left.
        ClusterUnavailable: The cluster does not answer.
    """
    _check_node(job, node)
    if job.has_ended and not [pod for pod in job.pods if node in (None, node_rank(job.kind, pod))]:
        raise UserError(_nothing_left(job, node))
    following = _Following(cluster, job, node)
    try:
        following.run(write, say)
    finally:
        following.close()


class _Following:
    """The logs of one job's pods, as they come."""

    def __init__(self, cluster: Cluster, job: FoundJob, node: int | None) -> None:
        self._cluster = cluster
        self._job = job
        self._node = node
        self._ended: float | None = None
        self._watch = PodWatch(cluster, job.kind, job.name)
        # Printed by the caller's thread, which notices when nobody reads any more.
        self._texts: queue.Queue[str] = queue.Queue(_AHEAD)
        sink = LogLines(self._rank_of, None, self._texts.put)
        self._logs = LogFollower(cluster, job.kind.container, sink.take, self._has_ended)

    def run(self, write: Write, say: Write) -> None:
        self._watch.start()
        told: set[str] = set()
        while not self._is_over():
            for reason in self._follow_started():
                if reason not in told:
                    told.add(reason)
                    say(reason)
            self._print(write, _LOOK_S)
        self._follow_started()  # one may have started and ended between two looks
        complete: list[bool] = []
        patience = _READ_S if self._have_ended() else 0.0
        # In the background, because its streams wait for what is printed here.
        finishing = threading.Thread(target=lambda: complete.append(self._logs.finish(patience)), daemon=True)
        finishing.start()
        while finishing.is_alive():
            self._print(write, _QUIET_S)
        while not self._texts.empty():
            write(self._texts.get())
        if complete != [True]:
            say("some pods' logs could not be read to their end")

    def close(self) -> None:
        self._watch.stop()

    def _is_over(self) -> bool:
        """Whether the job has ended and its pods have; those of a machine that is lost never tell."""
        job = get_job(self._cluster, self._job.kind, self._job.name, _PATIENCE_S)
        phase = phase_of(self._job.kind, job, self._watch.present(), self._job.num_nodes)
        if phase not in (Phase.SUCCEEDED, Phase.FAILED, Phase.GONE):
            return False
        self._ended = self._ended or time.monotonic()
        return self._have_ended() or time.monotonic() > self._ended + grace_s(self._pods()) + _LEFT_S

    def _have_ended(self) -> bool:
        return all(pod_end(self._job.kind, pod) for pod in self._watch.present())

    def _follow_started(self) -> list[str]:
        """Follow the pods that have started; returns what the others wait for."""
        waiting = []
        for pod in self._pods():
            if runs_or_ran(self._job.kind, pod):
                self._logs.follow(pod["metadata"]["name"])
            elif reason := why_waiting(pod):
                waiting.append(reason)
        return waiting

    def _print(self, write: Write, seconds: float) -> None:
        """Print what comes in so many seconds."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                write(self._texts.get(timeout=left))

    def _pods(self) -> list[dict[str, Any]]:
        """Those that are asked for."""
        pods = self._watch.pods()
        return [pod for pod in pods if self._node in (None, node_rank(self._job.kind, pod))]

    def _pod(self, name: str) -> dict[str, Any] | None:
        return next((pod for pod in self._watch.pods() if pod["metadata"]["name"] == name), None)

    def _rank_of(self, name: str) -> int:
        pod = self._pod(name)
        return 0 if pod is None else node_rank(self._job.kind, pod)

    def _has_ended(self, name: str) -> bool:
        pod = self._pod(name)
        return pod is not None and pod_end(self._job.kind, pod) is not None


def _print_pod(cluster: Cluster, job: FoundJob, pod: dict[str, Any], write: Write, tail: int | None) -> None:
    name, rank = pod["metadata"]["name"], node_rank(job.kind, pod)
    with api_errors(f"read the log of the pod '{name}'"):
        options = {} if tail is None else {"tail_lines": tail}
        response = cluster.core.read_namespaced_pod_log(
            name,
            cluster.namespace,
            container=job.kind.container,
            # As it comes: a log can be greater than memory, and one that is JSON would come back as Python's repr.
            _preload_content=False,
            _request_timeout=TIMEOUT_S,
            **options,
        )
        for line in lines(response.stream(_CHUNK)):
            write(f"{with_rank(rank, line.decode(errors='backslashreplace'))}\n")


def _check_node(job: FoundJob, node: int | None) -> None:
    if node is not None and not 0 <= node < job.num_nodes:
        raise UserError(
            f"attempt {job.attempt} of the run '{job.run}' has no node {node}: name one of 0 to "
            f"{job.num_nodes - 1}"
        )


def _nothing_left(job: FoundJob, node: int | None) -> str:
    who = "the pods" if node is None else f"the pod of node {node}"
    state = "have gone" if node is None else "has gone"
    if not job.has_ended:
        return (
            f"{who} of attempt {job.attempt} of the run '{job.run}' {state}, or not been made yet: see "
            f"`shardline status {job.run}`"
        )
    return f"{who} of attempt {job.attempt} of the run '{job.run}' {state}; {_copies(job, job.attempt)}"


def _copies(job: FoundJob, attempt: int) -> str:
    return f"copies of the logs are in the store's {job.run_folder}/attempts/{attempt}/pods"
