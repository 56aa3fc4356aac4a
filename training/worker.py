"""Entry point of a rank: `torchrun -m training.worker <run folder>`."""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from training.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_INVALID, UserError
from training.events import EventWriter
from training.processes import die_with_parent
from training.run_folder import RunFolder
from training.store import disk_errors


def main(run_folder: str) -> int:
    """Do one rank's part of the run's training, or of its evaluation; returns the exit code."""
    die_with_parent(int(os.environ.get("SHARDLINE_NODE_PID", "0")) or None)
    stop = StopFlag()
    rank = int(os.environ["RANK"])
    attempt = int(os.environ.get("SHARDLINE_ATTEMPT", "1"))
    folder = RunFolder.at(run_folder)
    try:
        with disk_errors(folder.root):
            finished = _run(folder, rank, attempt, stop)
    except BaseException as error:
        return _report(error, folder.attempt(attempt), rank)
    return 0 if finished else EXIT_INTERRUPTED


def _run(folder: RunFolder, rank: int, attempt: int, stop: "StopFlag") -> bool:
    """The rank's work; whether it came to its end."""
    source = f"{folder.rank_prefix}{rank}"
    # Here, because each has much to import that the other does without.
    if folder.purpose == "evaluation":
        from training.measure.rank import MeasuringRank

        # Attempts in the event stream are the training's.
        return MeasuringRank(folder, EventWriter(folder.events, source)).run()
    from training.rank import Rank

    return Rank(folder, EventWriter(folder.events, source, attempt), attempt, stop).run()


class StopFlag:
    """Remembers SIGTERM and Ctrl-C, so that the loop can save between two steps.

    Until it is armed there is nothing to save, and a stop ends the process at once: by the system's default
    action, since Python runs no handler while it waits in C++ for ranks that may never come.

    Attributes:
        asked: A stop was asked for.
    """

    def __init__(self) -> None:
        self.asked = False
        self._handle(signal.SIG_DFL)

    def arm(self) -> None:
        """From here on, the loop looks at `asked`."""
        self._handle(self._ask)

    def _handle(self, handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handler)

    def _ask(self, signum: int, frame: FrameType | None) -> None:
        self.asked = True


def _report(error: BaseException, attempt: Path, rank: int) -> int:
    """Write down why this rank failed, for the launcher to read; returns the exit code."""
    code = EXIT_INVALID if isinstance(error, UserError) else EXIT_FAILED
    text = str(error) if code == EXIT_INVALID else f"{type(error).__name__}: {error}"
    record = {
        "time": time.time(),
        "rank": rank,
        "exit_code": code,
        "message": text,
        "traceback": "" if code == EXIT_INVALID else traceback.format_exc(),
    }
    print(text if code == EXIT_INVALID else record["traceback"], file=sys.stderr, flush=True)
    errors = attempt / "errors"
    try:
        errors.mkdir(parents=True, exist_ok=True)
        (errors / f"rank-{rank}.json").write_text(json.dumps(record))
    except OSError:
        pass  # a full disk: the log has it
    # An orderly interpreter shutdown could wait for ranks that are gone.
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
