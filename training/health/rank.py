"""Entry points of a rank of the deep checks: of a run's job, and of `shardline doctor --deep`."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from training.background_events import BackgroundEventWriter
from training.events import Note
from training.guard.beat import BeatWriter
from training.health.deep import DeepChecks, deep_store
from training.health.deep_result import NAME, save_deep
from training.health.policy import HealthPolicy, load_policy, policy_of
from training.processes import die_with_parent
from training.run_folder import RunFolder


class HealthRank:
    """One rank of a run's deep checks.

    Args:
        folder: The run, from its job of health.
        events: This rank's.
        attempt: Counted from 1.
    """

    def __init__(self, folder: RunFolder, events: BackgroundEventWriter, attempt: int) -> None:
        self._folder = folder
        self._events = events
        self._attempt = attempt

    def run(self) -> bool:
        """Measure, and on rank 0 write the result; True, since there is nothing to save half-way."""
        paths = [self._folder.attempt(self._attempt) / NAME, self._folder.job_path / NAME]
        _check(policy_of(self._folder), self._attempt, paths, self._say)
        return True

    def _say(self, text: str) -> None:
        if os.environ["RANK"] == "0":
            print(text, flush=True)
            self._events.write(Note(text=text))


def main(policy: str, output: str) -> None:
    """`torchrun -m training.health.rank POLICY OUTPUT`: the same without a run; no policy is the built-in one."""
    die_with_parent()
    _check(load_policy(policy or None), 1, [Path(output)], lambda text: None)


def _check(policy: HealthPolicy, attempt: int, outputs: list[Path], say: Callable[[str], None]) -> None:
    beat = BeatWriter.of_this_rank()
    checks = DeepChecks(policy.thresholds, *deep_store(attempt), lambda: beat("evaluation", 0), say)
    result = checks.run()
    if result is not None:
        for path in outputs:
            save_deep(result, path)
    checks.leave_together()


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    # A communicator that never connected would keep this process.
    os._exit(0)
