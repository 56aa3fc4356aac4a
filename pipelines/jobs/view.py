"""Looks at runs in a cluster, once or for as long as they go on.

In a notebook:

    from components.cluster.client import connect
    from pipelines.jobs.view import watch_run
    losses = {view.step: view.loss for view in watch_run(connect(), "my-run") if view.step}
"""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any

from components.cluster.client import Cluster
from components.cluster.errors import ClusterUnavailable
from components.cluster.job_state import Phase, true_conditions
from components.cluster.kinds import PROGRESS
from pipelines.jobs.lookup import FoundJob, find_jobs, jobs_of_run
from pipelines.jobs.model import AttemptView, RunView
from pipelines.jobs.reasons import reasons_of

__all__ = ["AttemptView", "RunView", "view_run", "view_runs", "watch_run"]

_PATIENCE_S = 600.0
"""How long a cluster may be away before a watch gives up."""


def view_run(cluster: Cluster, run: str) -> RunView:
    """A run as it is now.

    Raises:
        UserError: It has no job; the message names the runs that there are.
        ClusterUnavailable: The cluster does not answer.
    """
    return _run_view(cluster, run, _attempts(cluster, jobs_of_run(cluster, run)))


def view_runs(cluster: Cluster) -> list[RunView]:
    """All runs that have jobs in the namespace, the one that began last first; without reasons.

    Raises:
        UserError: The cluster does not let the user look.
        ClusterUnavailable: The cluster does not answer.
    """
    views = [
        _run_view(cluster, run, tuple(_attempt_view(job) for job in jobs))
        for run, jobs in groupby(find_jobs(cluster), key=lambda job: job.run)
    ]
    return sorted(views, key=lambda view: max(attempt.started or 0 for attempt in view.attempts), reverse=True)


def watch_run(
    cluster: Cluster, run: str, interval_s: float = 2.0, successor_s: float = 10.0, last_step_s: float = 5.0
) -> Iterator[RunView]:
    """A run as it is now, and again whenever that changes, until its newest attempt has ended.

    Args:
        cluster: Where.
        run: The run's name.
        interval_s: Between two looks.
        successor_s: How long a next attempt is waited for after one that failed.
        last_step_s: How long the last step is waited for after success: it is told after the job's end.

    Raises:
        UserError: The run has no job; the message names the runs that there are.
        ClusterUnavailable: The cluster has not answered for ten minutes.
    """
    view = view_run(cluster, run)
    yield view
    answered = time.monotonic()
    ended: float | None = None
    while True:
        ended = (ended or time.monotonic() - _ended_ago(view)) if view.ended else None
        if ended is not None and time.monotonic() - ended >= (last_step_s if view.succeeded else successor_s):
            return
        if view.succeeded and view.step == view.num_steps:
            return
        time.sleep(interval_s)
        try:
            attempts = _attempts(cluster, find_jobs(cluster, run), view.attempts)
            answered = time.monotonic()
        except ClusterUnavailable:
            if time.monotonic() - answered > _PATIENCE_S:
                raise
            continue
        before, view = view, _run_view(cluster, run, attempts)
        if view != before:
            yield view


def _ended_ago(view: RunView) -> float:
    newest = view.attempts[-1]
    return 0.0 if newest.ended is None else max(0.0, time.time() - newest.ended)


def _run_view(cluster: Cluster, run: str, attempts: tuple[AttemptView, ...]) -> RunView:
    newest = attempts[-1]
    return RunView(
        run,
        f"namespace {cluster.namespace}",
        attempts,
        ended=newest.has_ended,
        succeeded=newest.phase == Phase.SUCCEEDED.value if newest.has_ended else None,
    )


def _attempts(
    cluster: Cluster, jobs: list[FoundJob], before: tuple[AttemptView, ...] = ()
) -> tuple[AttemptView, ...]:
    """The attempts of jobs, and those seen before whose jobs have gone since."""
    known = {attempt.number: attempt for attempt in before}
    now = {}
    for job in jobs:
        view, seen = _attempt_view(job), known.get(job.attempt)
        # What is said of a failure is asked for once: events fade, and are costly to list.
        settled = seen is not None and seen.has_ended and seen.phase == view.phase
        reasons = seen.reasons if seen is not None and settled else reasons_of(cluster, job)
        now[job.attempt] = replace(view, reasons=reasons)
    for number, seen in known.items():
        if number not in now:
            now[number] = seen if seen.has_ended else _gone(seen)
    return tuple(now[number] for number in sorted(now))


def _gone(attempt: AttemptView) -> AttemptView:
    return replace(
        attempt, phase=Phase.GONE.value, pods_ready=None, ended=time.time(), reasons=("its job was deleted",)
    )


def _attempt_view(job: FoundJob) -> AttemptView:
    metadata = job.manifest["metadata"]
    progress = _progress(metadata.get("annotations", {}).get(PROGRESS, ""))
    return AttemptView(
        number=job.attempt,
        phase=job.phase.value,
        kind=job.kind.kind,
        job=job.name,
        num_nodes=job.num_nodes,
        pods_ready=None if job.has_ended else sum(map(_is_ready, job.pods)),
        started=_seconds(metadata.get("creationTimestamp")),
        ended=_ended(job),
        step=progress.get("step"),
        num_steps=progress.get("num_steps"),
        loss=progress.get("loss"),
        tokens_per_s=progress.get("tokens_per_s"),
        seconds_left=progress.get("seconds_left"),
        told=progress.get("time"),
    )


def _progress(text: str) -> dict[str, Any]:
    """What the launcher annotated; empty where it has not, or somebody else has."""
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(content, dict):
        return {}
    return {key: value for key, value in content.items() if isinstance(value, int | float) and _tells(key, value)}


def _tells(key: str, value: float) -> bool:
    """Whether a number can be shown; a loss may be none."""
    return key == "loss" or math.isfinite(value)


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _ended(job: FoundJob) -> float | None:
    if not job.has_ended:
        return None
    # The field completionTime is missing after some failures; the condition never is.
    conditions = true_conditions(job.manifest)
    end = conditions.get(job.kind.succeeded) or conditions.get(job.kind.failed) or {}
    return _seconds(end.get("lastTransitionTime"))


def _seconds(timestamp: str | None) -> float | None:
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else None
