"""Brings one job of a run home: attempt after attempt, until its work is done or it must stop."""

import contextlib
import errno
import fcntl
import time
from collections.abc import Iterator

from components.jobs.attempts import records, verdict_of
from components.jobs.describe import TaskSettings
from components.jobs.jobs import Jobs, jobs_of
from components.jobs.leftovers import stop_leftovers
from components.jobs.recovery import Recovery
from components.jobs.work import Work
from components.step import Step, StepFailed
from training.errors import UserError
from training.heartbeat import Heartbeat, Watch
from training.run_folder import RunFolder

__all__ = ["Work", "bring_home", "stop_abandoned"]

_BEAT_S = 2.0

_DEAD_S = 15.0
"""A launcher that has not been heard of for so long is dead."""


def bring_home(step: Step, work: Work, task: TaskSettings, pipeline_job: str, *, jobs: Jobs | None = None) -> None:
    """Make attempts until the work is done.

    Args:
        step: The step at work.
        work: What for.
        task: What was set on the KFP task, for the pods of a cluster job.
        pipeline_job: Name of the pipeline job, which may start this step again after it failed.
        jobs: Where jobs are made; None: where the configuration says.

    Raises:
        UserError: The run's configuration or data is wrong, in a rank's own words.
        StepFailed: There is to be no further attempt; the message holds the first failing rank's last words.
    """
    folder = work.folder
    if verdict := verdict_of(folder, pipeline_job):
        if verdict["what"] == "invalid":
            raise UserError(verdict["sentence"])
        raise StepFailed(verdict["sentence"], verdict["exit_code"])
    with _lock(folder) as mine:
        if not mine and not _is_dead(folder):
            raise UserError(
                f"the run '{folder.run}' is being {work.doing} by another process: wait for it, or give this run "
                "another name"
            )
        with Heartbeat(folder.launcher_heartbeat, _BEAT_S):
            jobs = jobs or jobs_of(folder, work.config, task, pipeline_job)
            Recovery(step, work, jobs, pipeline_job).run()


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
