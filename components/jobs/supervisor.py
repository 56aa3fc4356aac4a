"""Brings one job of a run home: attempt after attempt, until its work is done or it must stop."""

import contextlib
import errno
import fcntl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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
from components.step import Step, StepFailed
from training.config import RunConfig
from training.errors import UserError
from training.events import Incident
from training.heartbeat import Heartbeat, Watch
from training.run_folder import RunFolder

_BEAT_S = 2.0

_DEAD_S = 15.0
"""A launcher that has not been heard of for so long is dead."""


@dataclass(frozen=True)
class Work:
    """What a job is to bring about.

    Attributes:
        folder: The run's, seen from the job.
        config: The run's, with the sizes of this job.
        is_done: Whether the ranks have made what they are for; asked after each attempt.
        doing: What is done with the run, for people: `trained`.
    """

    folder: RunFolder
    config: RunConfig
    is_done: Callable[[], bool]
    doing: str


def bring_home(step: Step, work: Work, task: TaskSettings, pipeline_job: str) -> None:
    """Make attempts until the work is done.

    Args:
        step: The step at work.
        work: What for.
        task: What was set on the KFP task, for the pods of a cluster job.
        pipeline_job: Name of the pipeline job, which may start this step again after it failed.

    Raises:
        UserError: The run's configuration or data is wrong, in a rank's own words.
        StepFailed: The attempts are used up; the message holds the first failing rank's last words.
    """
    folder = work.folder
    if verdict := verdict_of(folder, pipeline_job):
        raise (UserError if verdict["what"] == "invalid" else StepFailed)(verdict["sentence"])
    with _lock(folder) as mine:
        if not mine and not _is_dead(folder):
            raise UserError(
                f"the run '{folder.run}' is being {work.doing} by another process: wait for it, or give this run "
                "another name"
            )
        with Heartbeat(folder.launcher_heartbeat, _BEAT_S):
            _attempt_until_done(step, work, task, pipeline_job)


def stop_abandoned(folder: RunFolder) -> int:
    """Stop jobs that dead supervisors of this run left behind; returns how many there were.

    A run that a live supervisor looks after is left alone.
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


def _attempt_until_done(step: Step, work: Work, task: TaskSettings, pipeline_job: str) -> None:
    folder, config = work.folder, work.config
    jobs = jobs_of(folder, config, task, pipeline_job)
    made = failures_before(folder, pipeline_job)
    while True:
        made += 1
        number = jobs.next_attempt()
        incident = _attempt(step, work, jobs, number, pipeline_job)
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
        f"{folder.purpose} failed: {who} ended with {how} ({decision.reason}); logs are in "
        f"{folder.attempt(incident.attempt)}\n{incident.evidence}"
    )


def _attempt(step: Step, work: Work, jobs: Jobs, number: int, pipeline_job: str) -> Incident | None:
    """One attempt from submit, or from where a launcher before left it, to its end; None if it succeeded."""
    folder, launcher = work.folder, jobs.launcher()
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
        overdue = follow(step, launcher, work.config.resilience, folder.rank_prefix)
        if overdue is not None:
            step.note(overdue.sentence)
            why = "\n".join([overdue.sentence, *launcher.waiting()])
            launcher.stop()
            ending = Ending(what=overdue.what, evidence=why)
        else:
            ending = launcher.ending()
    except BaseException:
        _abandon(folder, launcher, record)
        raise
    # However the job ended after that: another attempt would begin from nothing where checkpoints are not kept.
    if work.is_done():
        close_record(folder, record, "succeeded", ending)
        return None
    incident = judge(folder, number, ending)
    close_record(folder, record, incident.what, ending)
    if folder.purpose == "training":
        # Who reads a run's events takes incidents for those of its training.
        step.write(incident)
    return incident


def _abandon(folder: RunFolder, launcher: Launcher, record: dict[str, Any]) -> None:
    """Stop an attempt because of an error, which is told whatever comes of that."""
    try:
        launcher.stop()
        close_record(folder, record, "interrupted")
    except Exception as error:
        # The record stays open, so that the job is found again.
        print(f"the job could not be stopped, and may still run: {error}", flush=True)


@contextlib.contextmanager
def _lock(folder: RunFolder) -> Iterator[bool]:
    """Hold the job's lock for the block; yields False, at once, if another process holds it."""
    with (folder.job_path / "lock").open("w") as lock:
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
