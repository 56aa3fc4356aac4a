"""The job that measures a run's models, through the same launchers as the training; none if all is measured."""

from collections.abc import Sequence

from components.jobs.describe import TaskSettings
from components.jobs.supervisor import Work, bring_home
from components.step import Step
from training.config import RunConfig
from training.measure.measured import Measured, copy_measured, load_measured
from training.measure.request import ModelName, Subject, measured_folder, save_request
from training.run_folder import RunFolder
from training.store import Store

_SHARED = ("base", "champion")
"""Models whose results are kept in the store, where other runs find them."""


def measure(
    step: Step, config: RunConfig, subjects: Sequence[Subject], task: TaskSettings, pipeline_job: str
) -> dict[ModelName, Measured]:
    """Measure models that have not been measured, in one job for all.

    Args:
        step: The step at work.
        config: The run's.
        subjects: The models.
        task: Settings of the KFP task, for the job's pods.
        pipeline_job: Name of the pipeline job.

    Returns:
        What was measured, now or before, by model.

    Raises:
        UserError: What the configuration asks for cannot be measured, in a rank's own words.
        StepFailed: The job's attempts are used up.
    """
    folder, store = step.folder, Store(step.folder.root)
    for subject in subjects:
        _take_from_store(folder, store, subject)
    before = _found(folder, subjects)
    if not _is_complete(before, subjects):
        save_request(folder, subjects)
        bring_home(
            step,
            Work(
                folder.seen_from("evaluation"),
                job_config(config),
                is_done=lambda: _is_complete(_found(folder, subjects), subjects),
                doing="evaluated",
            ),
            task,
            pipeline_job,
        )
    measured = _found(folder, subjects)
    for name, one in measured.items():
        # What was at hand in another precision than the ranks' was measured anew.
        if name in before and before[name].precision == one.precision:
            step.note(f"the {name} model was measured before")
    for subject in subjects:
        if subject.name in _SHARED and store.get("evaluations", subject.key) is None:
            with store.publish("evaluations", subject.key, {"model": str(subject.folder)}) as staging:
                copy_measured(measured_folder(folder, subject.name), staging)
    return measured


def job_config(config: RunConfig) -> RunConfig:
    """A run's configuration with the sizes of its evaluation in place of its training's."""
    evaluation, cluster = config.evaluation, config.cluster
    procs = evaluation.procs_per_node
    parallel = {"num_nodes": evaluation.num_nodes, "procs_per_node": procs or config.parallel.procs_per_node}
    # On CPUs (0) it stays so; else each rank has its GPU.
    gpus = procs if procs is not None and cluster.gpus_per_node != 0 else cluster.gpus_per_node
    return config.model_copy(
        update={
            "parallel": config.parallel.model_copy(update=parallel),
            "cluster": cluster.model_copy(update={"gpus_per_node": gpus, "metrics_port": None}),
        }
    )


def _take_from_store(folder: RunFolder, store: Store, subject: Subject) -> None:
    """Have a result at hand that another run left in the store."""
    mine = measured_folder(folder, subject.name)
    if subject.name not in _SHARED or load_measured(mine, subject.key) is not None:
        return
    published = store.get("evaluations", subject.key)
    if published is not None and load_measured(published, subject.key) is not None:
        copy_measured(published, mine)


def _found(folder: RunFolder, subjects: Sequence[Subject]) -> dict[ModelName, Measured]:
    found = {
        subject.name: load_measured(measured_folder(folder, subject.name), subject.key) for subject in subjects
    }
    return {name: measured for name, measured in found.items() if measured is not None}


def _is_complete(found: dict[ModelName, Measured], subjects: Sequence[Subject]) -> bool:
    """Whether all are measured, in one precision."""
    return len(found) == len(subjects) and len({measured.precision for measured in found.values()}) == 1
