"""The train step: a run is trained once, by whatever number of attempts."""

from pathlib import Path
from typing import Any

from components.jobs.describe import TaskSettings
from components.jobs.supervisor import Work, bring_home
from components.step import Step
from components.timeline.live import LiveTimeline
from components.timeline.page import write_timeline
from components.tracking.live import LiveLog
from training.errors import UserError
from training.events import TrainStep, read_events
from training.run_folder import RunFolder
from training.store import MANIFEST, about
from training.vocabulary import embedding_rows


def supervise(step: Step, task: TaskSettings | None = None, job: str = "") -> tuple[Path, dict[str, Any]]:
    """Train the run.

    Args:
        step: The step's surroundings.
        task: What was set on the KFP task, for the pods of a cluster job.
        job: Name of the pipeline job, which may start this step again after it failed.

    Returns:
        The tuned model's folder, and facts about it for the artifact.

    Raises:
        UserError: The run's configuration or data is wrong, in a rank's own words.
        StepFailed: The attempts are used up; the message holds the first failing rank's last words.
    """
    folder = step.folder
    _check_vocabulary(folder)
    if (folder.model / MANIFEST).is_file():
        _check_origin(folder)
        step.detail = "trained before; nothing to do"
        step.note(f"the run '{folder.run}' is trained already: {folder.model}")
        write_timeline(folder)
        return folder.model, _facts(folder)
    task = task or TaskSettings()
    task.save(folder)
    work = Work(folder, folder.config(), is_done=lambda: (folder.model / MANIFEST).is_file(), doing="trained")
    with LiveLog(folder, work.config, step.note), LiveTimeline(folder, step.note):
        bring_home(step, work, task, job)
    facts = _facts(folder)
    if "loss" in facts:
        step.detail = f"{facts['steps']} steps, loss {facts['loss']:.3f}"
    return folder.model, facts


def _check_vocabulary(folder: RunFolder) -> None:
    """Refuse tokens that the model will have no embedding for, before any rank starts."""
    inputs = folder.inputs()
    embedding_rows(about(inputs.model), about(inputs.dataset), folder.config().model.resize_vocabulary)


def _check_origin(folder: RunFolder) -> None:
    """Refuse a finished run whose model or data has changed since: it was not trained from these."""
    sealed, inputs = about(folder.model), folder.inputs()
    now = {"base_model": inputs.model.name, "dataset": inputs.dataset.name}
    for key, name in now.items():
        before = sealed.get(key, name)
        if before != name:
            what = key.replace("_", " ")
            raise UserError(
                f"the run '{folder.run}' was trained with the {what} {before}, but its {what} is now {name}: give "
                "this run another name"
            )


def _facts(folder: RunFolder) -> dict[str, Any]:
    # The loss of a step that was left out may be no number.
    steps = [event for event in read_events(folder.events) if isinstance(event, TrainStep) and not event.skipped]
    facts: dict[str, Any] = {"run": folder.run, "attempts": len(folder.attempts())}
    if steps:  # the events may have been removed after the training
        facts |= {"steps": steps[-1].num_steps, "loss": steps[-1].loss}
    return facts
