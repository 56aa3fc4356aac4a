"""Looks runs up in Kubeflow Pipelines by the name that they have in the store, and ends them."""

from dataclasses import dataclass
from itertools import islice
from typing import Any

from pipelines.client import Kubeflow, named
from pipelines.submit import run_url
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
    found = next(newest_runs(kubeflow, filter=named("display_name", name)), None)
    if found is None:
        recent = islice(newest_runs(kubeflow), _LOOKED_THROUGH)
        found = next((run for run in recent if run_name_from_job(run.display_name) == name), None)
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


def newest_runs(kubeflow: Kubeflow, **options: Any) -> Any:
    """Runs as the server gives them, newest first."""
    listing = kubeflow.runs.run_service_list_runs
    return kubeflow.each(listing, "runs", namespace=kubeflow.namespace, sort_by="created_at desc", **options)


def _is_step(name: str | None) -> bool:
    """Whether a task is a step of the graph, and not what Kubeflow runs beside or around one."""
    if not name or name in ("root", "executor"):
        return False
    return not name.endswith("-driver") and not name.startswith("exit-handler-")
