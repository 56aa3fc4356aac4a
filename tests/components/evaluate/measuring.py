"""Jobs of the tests: ranks that are forked with torch imported, in place of torchrun's."""

import os
from typing import ClassVar

from components.cluster.job_state import Phase
from components.jobs.launchers import Ending
from components.jobs.launchers.local import LocalLauncher
from tests.runs import Run
from training.run_folder import RunFolder


class QuickLauncher(LocalLauncher):
    """Runs a job's ranks to their end while it is submitted.

    Attributes:
        jobs: What was submitted to any of them.
    """

    jobs: ClassVar[list] = []

    def submit(self, job):
        """Run it."""
        self.jobs.append(job)
        self.codes = Run(RunFolder.at(job.run_folder)).ranks(job.procs_per_node, job.attempt)
        return {"pid": os.getpid()}

    def poll(self):
        """It has ended."""
        return Phase.FAILED if any(self.codes) else Phase.SUCCEEDED

    def ending(self):
        """With the first rank's code."""
        return Ending(exit_code=max(self.codes))

    def stop(self):
        """It has ended."""
