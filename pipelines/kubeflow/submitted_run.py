"""Follows a run that was submitted to Kubeflow Pipelines through all of its steps, and says how it ended."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from components.cluster.client import Cluster
from components.cluster.errors import ClusterUnavailable
from components.cluster.job_state import Phase
from components.jobs.report import newest_report
from pipelines.jobs.lookup import find_jobs
from pipelines.jobs.model import AttemptView, RunView
from pipelines.jobs.view import view_run
from pipelines.kubeflow.client import Kubeflow
from pipelines.kubeflow.runs import KubeflowRun, find_run
from pipelines.progress import STEPS
from training.errors import UserError
from training.run_folder import RunFolder

_PATIENCE_S = 600.0
"""How long the cluster or Kubeflow may be away before a watch gives up."""


def watch_submitted(kubeflow: Kubeflow, cluster: Cluster, run: str, interval_s: float = 2.0) -> Iterator[RunView]:
    """A run as it is now, and again whenever that changes, until Kubeflow has ended it.

    It begins before the run's first job, with the graph's first step, and ends after its last step.

    Args:
        kubeflow: Where the run was submitted.
        cluster: Where its jobs are.
        run: The run's name.
        interval_s: Between two looks.

    Raises:
        UserError: There is no such run; or Kubeflow or the cluster has refused to answer for ten minutes.
        ClusterUnavailable: The cluster has not answered for ten minutes.
    """
    view = _look(kubeflow, cluster, run, ())
    yield view
    answered = time.monotonic()
    while not view.ended:
        time.sleep(interval_s)
        try:
            before, view = view, _look(kubeflow, cluster, run, view.attempts)
        except (UserError, ClusterUnavailable):
            # Kubeflow tells its outages as it tells refusals; what was answered once is asked again.
            if time.monotonic() - answered > _PATIENCE_S:
                raise
            continue
        answered = time.monotonic()
        if view != before:
            yield view


def outcome_page(kubeflow: Kubeflow, view: RunView, store: str | Path = "") -> str:
    """Markdown that says how a run ended: of one that failed the step, the words of its attempts, and the log.

    Args:
        kubeflow: Where the run was submitted.
        view: The last of `watch_submitted`.
        store: The store, if it is mounted here: then the report of the last attempt is in the page.

    Raises:
        UserError: Kubeflow cannot be reached, refuses, or has no such run.
    """
    pipeline = _pipeline(kubeflow, view.run)
    if not pipeline.ended:
        return f"**{view.run}** goes on ({pipeline.state.lower()}): [watch it in Kubeflow]({pipeline.url})."
    if pipeline.state == "SUCCEEDED":
        return f"**{view.run}** succeeded: [its steps in Kubeflow]({pipeline.url})."
    failed = _failed(pipeline)
    where = f" at the step `{failed}`" if failed else ""
    lines = [
        f"**{view.run}** {'was stopped' if pipeline.state == 'CANCELED' else 'failed'}{where}: "
        f"[its steps and their logs in Kubeflow]({pipeline.url}).",
        *([f"Kubeflow says: {pipeline.error}"] if pipeline.error else []),
    ]
    report = newest_report(RunFolder(store, view.run)) if store else None
    if report is not None:
        return "\n\n".join([*lines, report])
    reasons = [f"- attempt {attempt.number}: {reason}" for attempt in view.attempts for reason in attempt.reasons]
    return "\n\n".join([*lines, *(["\n".join(reasons)] if reasons else [])])


def _look(kubeflow: Kubeflow, cluster: Cluster, run: str, before: tuple[AttemptView, ...]) -> RunView:
    # Asked first: what the jobs came to before its end is then in what the cluster says.
    pipeline = _pipeline(kubeflow, run)
    running = [step for name, state in pipeline.tasks.items() if state == "RUNNING" for step in _step(name)]
    return RunView(
        run,
        f"namespace {cluster.namespace}",
        _attempts(cluster, run, before),
        stage=running[-1] if running and not pipeline.ended else "",
        ended_at=_failed(pipeline) if pipeline.state in ("FAILED", "CANCELED") else "",
        stopped=pipeline.state == "CANCELED",
        reasons=(
            f"{pipeline.state.lower()} in Kubeflow Pipelines: {pipeline.url}",
            *([f"Kubeflow says: {pipeline.error}"] if pipeline.error else []),
        ),
        ended=pipeline.ended,
        succeeded=pipeline.state == "SUCCEEDED" if pipeline.ended else None,
    )


def _pipeline(kubeflow: Kubeflow, run: str) -> KubeflowRun:
    pipeline = find_run(kubeflow, run)
    if pipeline is None:
        raise UserError(f"Kubeflow Pipelines at {kubeflow.host} has no run '{run}': check its name and namespace")
    return pipeline


def _attempts(cluster: Cluster, run: str, before: tuple[AttemptView, ...]) -> tuple[AttemptView, ...]:
    """The attempts that have a job, and those seen before whose job is gone: before the first there is none."""
    now = view_run(cluster, run).attempts if find_jobs(cluster, run) else ()
    seen = {old.number: old if old.has_ended else replace(old, phase=Phase.GONE.value) for old in before}
    known = {**seen, **{attempt.number: attempt for attempt in now}}
    return tuple(known[number] for number in sorted(known))


def _failed(pipeline: KubeflowRun) -> str:
    """The first of the graph's steps that failed; empty if Kubeflow tells of none."""
    steps = (step for name, state in pipeline.tasks.items() if state == "FAILED" for step in _step(name))
    return next(steps, "")


def _step(task: str) -> list[str]:
    """The graph's step that a task of Kubeflow's is; empty for the groups of tasks around steps."""
    name = task.replace("-", "_")
    return [name] if name in STEPS else []
