"""Looks runs up in Kubeflow Pipelines by the name that they have in the store, and ends them."""

from dataclasses import dataclass
from itertools import islice
from typing import Any

from pipelines.kubeflow.client import Kubeflow, Missing, named
from pipelines.kubeflow.submit import PIPELINE, run_url
from training.errors import UserError
from training.run_folder import run_name_from_job

ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELED", "SKIPPED"})
"""States that a run does not leave."""

_LOOKED_THROUGH = 300


@dataclass(frozen=True)
class KubeflowRun:
    """What Kubeflow knows about a run.

    Attributes:
        run_id: Kubeflow's id.
        name: The run's name in the store.
        state: PENDING, RUNNING, SUCCEEDED, FAILED, CANCELING, CANCELED …
        tasks: State of each task that has begun, by the task's name, in order.
        error: What Kubeflow says about a failure; often empty.
        url: Where to watch it.
        schedule: Id of the recurring run that started it, or empty.
    """

    run_id: str
    name: str
    state: str
    tasks: dict[str, str]
    error: str
    url: str
    schedule: str

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.state in ENDED


def find_run(kubeflow: Kubeflow, name: str) -> KubeflowRun | None:
    """The newest Kubeflow run that works, or worked, on the run of this name; None if there is none.

    A resumed run has several; a scheduled one is named after its job (see `run_name_from_job`).

    Raises:
        UserError: The server cannot be reached, or refuses.
    """
    ours = _OurPipelines(kubeflow)
    found = next(filter(ours.made, newest_runs(kubeflow, filter=named("display_name", name))), None)
    if found is None:
        recent = islice(newest_runs(kubeflow), _LOOKED_THROUGH)
        same = (run for run in recent if run_name_from_job(run.display_name) == name)
        found = next(filter(ours.made, same), None)
    if found is None:
        return None
    # Only a single run's answer is sure to hold its tasks.
    run = kubeflow.call(kubeflow.runs.run_service_get_run, run_id=found.run_id)
    details = sorted(
        (run.run_details.task_details or []) if run.run_details else [],
        key=lambda task: (task.create_time is None, task.create_time),
    )
    return KubeflowRun(
        run.run_id,
        name,
        run.state or "PENDING",
        {task.display_name: task.state or "PENDING" for task in details if _is_step(task.display_name)},
        run.error.message if run.error else "",
        run_url(kubeflow, run.run_id),
        run.recurring_run_id or "",
    )


def terminate_run(kubeflow: Kubeflow, name: str) -> KubeflowRun:
    """Ask Kubeflow to end the run of this name.

    Its step gets SIGTERM and about a second; then the exit handler runs.

    Returns:
        The run as it was before; if it had ended, nothing was asked.

    Raises:
        UserError: There is none of the name, or the server refuses.
    """
    run = find_run(kubeflow, name)
    if run is None:
        raise UserError(
            f"Kubeflow Pipelines at {kubeflow.host} has no run '{name}': check its name and --namespace"
        )
    if not run.ended:
        kubeflow.call(kubeflow.runs.run_service_terminate_run, run_id=run.run_id)
    return run


class _OurPipelines:
    """Tells runs of the graph from others, which may have the same names.

    By the graph's own name: the pipeline that somebody uploaded it as may have any.
    """

    def __init__(self, kubeflow: Kubeflow) -> None:
        self._kubeflow = kubeflow
        self._known: dict[str, bool] = {}

    def made(self, run: Any) -> bool:
        reference = run.pipeline_version_reference
        if reference is None or not reference.pipeline_version_id:
            return run.pipeline_spec is None or _is_graph(run.pipeline_spec)
        key = reference.pipeline_version_id
        if key not in self._known:
            self._known[key] = self._is_ours(reference)
        return self._known[key]

    def _is_ours(self, reference: Any) -> bool:
        try:
            version = self._kubeflow.call(
                self._kubeflow.pipelines.pipeline_service_get_pipeline_version,
                reference.pipeline_id,
                reference.pipeline_version_id,
            )
        except Missing:
            return True  # it was deleted, and cannot tell any more
        return _is_graph(version.pipeline_spec)


def _is_graph(spec: Any) -> bool:
    """Whether a specification is the graph's; one in a form that does not tell its name may be."""
    content = spec if isinstance(spec, dict) else {}
    content = content.get("pipeline_spec") or content
    name = (content.get("pipelineInfo") or {}).get("name")
    return name is None or name == PIPELINE


def newest_runs(kubeflow: Kubeflow, **options: Any) -> Any:
    """Runs as the server gives them, newest first."""
    listing = kubeflow.runs.run_service_list_runs
    return kubeflow.each(listing, "runs", namespace=kubeflow.namespace, sort_by="created_at desc", **options)


def _is_step(name: str | None) -> bool:
    """Whether a task is a step of the graph, and not what Kubeflow runs beside or around one."""
    if not name or name in ("root", "executor"):
        return False
    return not name.endswith("-driver") and not name.startswith("exit-handler-")
