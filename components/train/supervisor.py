"""Brings one run home: attempt after attempt, until it is trained or must stop."""

import contextlib
import errno
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from components.step import Step, StepFailed
from components.jobs.attempts import (
    close_record,
    failures_before,
    read_record,
    records,
    save_verdict,
    verdict_of,
    write_record,
)
from components.jobs.describe import TaskSettings
from components.jobs.follow import follow
from components.jobs.incident import judge
from components.jobs.jobs import Jobs, jobs_of
from components.jobs.launchers import Ending, Launcher
from components.jobs.leftovers import stop_leftovers
from components.jobs.policy import Decision, decide
from components.jobs.report import write_report
from training.config import RunConfig
from training.errors import UserError
from training.events import Incident, TrainStep, read_events
from training.heartbeat import Heartbeat, Watch
from training.run_folder import RunFolder
from training.store import MANIFEST, about
from training.vocabulary import embedding_rows

_BEAT_S = 2.0

_DEAD_S = 15.0
"""A launcher that has not been heard of for so long is dead."""


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
        return folder.model, _facts(folder)
    if verdict := verdict_of(folder, job):
        raise (UserError if verdict["what"] == "invalid" else StepFailed)(verdict["sentence"])
    with _lock(folder) as mine:
        if not mine and not _is_dead(folder):
            raise UserError(
                f"the run '{folder.run}' is being trained by another process: wait for it, or give this run "
                "another name"
            )
        with Heartbeat(folder.launcher_heartbeat, _BEAT_S):
            _attempt_until_done(step, folder.config(), task or TaskSettings(), job)
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


def stop_abandoned(folder: RunFolder) -> int:
    """Stop jobs that dead supervisors of this run left behind; returns how many there were.

    A run that a live supervisor trains is left alone.
    """
    if not folder.attempts():
        return 0
    with _lock(folder) as mine:
        return stop_leftovers(folder) if mine or _is_dead(folder) else 0


def _is_dead(folder: RunFolder) -> bool:
    """Whether the holder of the run's lock is gone: a network disk may keep the lock of a machine that is lost."""
    if not any(record.get("namespace") for record in records(folder)):
        return False
    watch = Watch(folder.launcher_heartbeat)
    watch.silent_s()
    time.sleep(_DEAD_S)
    return watch.silent_s() >= _DEAD_S


def _attempt_until_done(step: Step, config: RunConfig, task: TaskSettings, pipeline_job: str) -> None:
    folder = step.folder
    jobs = jobs_of(folder, config, task, pipeline_job)
    made = failures_before(folder, pipeline_job)
    while True:
        made += 1
        number = jobs.next_attempt()
        incident = _attempt(step, config, jobs, number, pipeline_job)
        if incident is None:
            return
        decision = decide(incident, made, config.resilience.max_attempts)
        step.note(f"attempt ended: {incident.what} ({decision.reason})")
        write_report(folder, incident, decision)
        if decision.retry:
            continue
        sentence = _failure(folder, incident, decision)
        save_verdict(folder, pipeline_job, incident, sentence)
        raise (UserError if incident.what == "invalid" else StepFailed)(sentence)


def _failure(folder: RunFolder, incident: Incident, decision: Decision) -> str:
    if incident.what == "invalid":
        return incident.evidence
    who = incident.node or "the job" if incident.rank is None else f"rank {incident.rank}"
    how = incident.what.replace("_", " ") if incident.exit_code is None else f"exit code {incident.exit_code}"
    return (
        f"training failed: {who} ended with {how} ({decision.reason}); logs are in "
        f"{folder.attempt(incident.attempt)}\n{incident.evidence}"
    )


def _attempt(step: Step, config: RunConfig, jobs: Jobs, number: int, pipeline_job: str) -> Incident | None:
    """One attempt from submit, or from where a launcher before left it, to its end; None if it succeeded."""
    folder, launcher = step.folder, jobs.launcher()
    job = jobs.describe(number)
    ranks = job.num_nodes * job.procs_per_node
    record: dict[str, Any] = {
        "number": number,
        "launcher": launcher.name,
        "name": job.name,
        "num_nodes": job.num_nodes,
        "procs_per_node": job.procs_per_node,
        "pipeline_job": pipeline_job,
        "started": read_record(folder, number).get("started", time.time()),
        **jobs.where(),
    }
    step.note(f"attempt {number}: {ranks} ranks on {job.num_nodes} node(s), launcher {launcher.name}")
    try:
        # From before the submit: a launcher that is killed right after it must find the job again.
        write_record(folder, record)
        record.update(launcher.submit(job))
        write_record(folder, record)
        overdue = follow(step, launcher, config.resilience)
        if overdue is not None:
            step.note(overdue.sentence)
            why = "\n".join([overdue.sentence, *launcher.waiting()])
            launcher.stop()
            ending = Ending(what=overdue.what, evidence=why)
        else:
            ending = launcher.ending()
    except BaseException:
        _abandon(step, launcher, record)
        raise
    # However the job ended after that: another attempt would begin from nothing where checkpoints are not kept.
    if (folder.model / MANIFEST).is_file():
        close_record(folder, record, "succeeded", ending)
        return None
    incident = judge(folder, number, ending)
    close_record(folder, record, incident.what, ending)
    step.write(incident)
    return incident


def _abandon(step: Step, launcher: Launcher, record: dict[str, Any]) -> None:
    """Stop an attempt because of an error, which is told whatever comes of that."""
    try:
        launcher.stop()
        close_record(step.folder, record, "interrupted")
    except Exception as error:
        # The record stays open, so that the job is found again.
        print(f"the job could not be stopped, and may still run: {error}", flush=True)


def _facts(folder: RunFolder) -> dict[str, Any]:
    steps = [event for event in read_events(folder.events) if isinstance(event, TrainStep)]
    facts: dict[str, Any] = {"run": folder.run, "attempts": len(folder.attempts())}
    if steps:  # the events may have been removed after the training
        facts |= {"steps": steps[-1].num_steps, "loss": steps[-1].loss}
    return facts


@contextlib.contextmanager
def _lock(folder: RunFolder) -> Iterator[bool]:
    """Hold the run's lock for the block; yields False, at once, if another process holds it."""
    with (folder.path / "train.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = True
        except BlockingIOError:
            mine = False
        except OSError as error:
            # A disk without locks. In a cluster two launchers of a run follow one job, since its name is certain.
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            mine = True
        yield mine
