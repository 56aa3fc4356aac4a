"""Brings a run home on the suite's hosts, in a process of its own that can be killed.

`python -m tests.faults.drive <run folder> <hosts' folder> [NAME=VALUE ...]`; variables are those of every node.
"""

import sys
from pathlib import Path

from components.jobs.describe import TaskSettings
from components.jobs.supervisor import Work, bring_home
from components.step import Step
from tests.faults.host_jobs import HostJobs
from training.run_folder import RunFolder
from training.store import MANIFEST

_PIPELINE_JOB = "faults"
"""Under which a supervisor that is started again finds what the one before has seen."""


def main(run: str, hosts: str, *variables: str) -> None:
    """Be the train step of a run."""
    folder = RunFolder.at(run)
    env = dict(variable.split("=", 1) for variable in variables)
    with Step("train", str(folder.root), folder.run) as step:
        work = Work(folder, folder.config(), lambda: (folder.model / MANIFEST).is_file(), "trained")
        bring_home(step, work, TaskSettings(), _PIPELINE_JOB, jobs=HostJobs(folder, Path(hosts), env))


if __name__ == "__main__":
    main(*sys.argv[1:])
