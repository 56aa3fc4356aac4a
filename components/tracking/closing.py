"""Ends a run in MLflow whose pipeline ended before the register step could."""

import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

from components.tracking.connection import connect, has_registry, quiet_mlflow
from components.tracking.mirror import run_tags, search_by_tags
from training.events import TrainStep, read_events
from training.run_folder import RunFolder

_PATIENCE_S = 30.0


def end_in_mlflow(folder: RunFolder, status: Literal["FAILED", "KILLED"], note: Callable[[str], None]) -> None:
    """Give the run and its attempts a final status, as far as MLflow shows them as running.

    What MLflow was never told of stays unknown to it. An MLflow that is away, or takes too long, is noted
    and no more: the next start of the run puts it right.

    Args:
        folder: The run's folder.
        status: How the run ended.
        note: Takes a line for people.
    """
    if not any(isinstance(event, TrainStep) for event in read_events(folder.events)):
        return  # which spares the seconds that it takes to load MLflow
    problem = ["there was no answer in time"]

    def work() -> None:
        try:
            _end(folder, status)
        except Exception as error:  # whatever it is, the pipeline has ended
            problem[0] = str(error)
        else:
            problem.clear()

    # Here, since another thread must not change the environment under this one.
    with quiet_mlflow():
        thread = threading.Thread(target=work, name="mlflow", daemon=True)
        thread.start()
        thread.join(_PATIENCE_S)
    if problem:
        note(f"MLflow may show the run as running until it is started again: {problem[0]}")


def _end(folder: RunFolder, status: str) -> None:
    settings = folder.config().registry
    if not has_registry(settings.tracking_uri, folder.root):
        return
    with connect(settings.tracking_uri, folder.root, lambda line: None) as connection:
        for run in _running(connection.client, settings.experiment, folder):
            connection.client.set_terminated(run.info.run_id, status=status)


def _running(client: Any, experiment: str, folder: RunFolder) -> Iterator[Any]:
    """The run and its attempts, of those that MLflow shows as running."""
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return
    for run in search_by_tags(client, found.experiment_id, run_tags(folder)):
        nested = search_by_tags(client, found.experiment_id, {"mlflow.parentRunId": run.info.run_id})
        yield from (each for each in [*nested, run] if each.info.status == "RUNNING")
