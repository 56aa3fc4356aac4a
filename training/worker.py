"""Entry point of a rank: `torchrun -m training.worker <run folder>`."""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from training.background_events import BackgroundEventWriter
from training.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_INVALID, UserError
from training.patience import StorageError, is_of_disk
from training.processes import die_with_ancestor, die_with_parent
from training.run_folder import RunFolder
from training.store import disk_errors, write_atomically

_FLUSH_S = 60.0
"""How long a rank that is done waits for a disk that does not take its last events."""

_LEAVE_S = 5.0
"""How long a rank that has failed waits for one."""


def main(run_folder: str) -> int:
    """Do one rank's part of the run's training, or of its evaluation; returns the exit code."""
    node = os.environ.get("SHARDLINE_NODE_PID")
    if node is None:
        die_with_parent()
    else:
        die_with_ancestor(int(node))  # in between is the process that ranks are forked from
    stop = StopFlag()
    rank = int(os.environ["RANK"])
    attempt = int(os.environ.get("SHARDLINE_ATTEMPT", "1"))
    folder = RunFolder.at(run_folder)
    # Attempts in the event stream are the training's.
    stamp = attempt if folder.purpose == "training" else 0
    events = BackgroundEventWriter(folder.events, f"{folder.rank_prefix}{rank}", stamp)
    try:
        with disk_errors(folder.root):
            finished = _run(folder, events, attempt, stop)
    except BaseException as error:
        return _report(error, folder.attempt(attempt), rank, events)
    events.flush(_FLUSH_S)
    return 0 if finished else EXIT_INTERRUPTED


def _run(folder: RunFolder, events: BackgroundEventWriter, attempt: int, stop: "StopFlag") -> bool:
    """The rank's work; whether it came to its end."""
    # Here, because each has much to import that the other does without.
    if folder.purpose == "evaluation":
        from training.measure.rank import MeasuringRank

        return MeasuringRank(folder, events).run()
    if folder.purpose == "health":
        from training.health.rank import HealthRank

        return HealthRank(folder, events, attempt).run()
    from training.rank import Rank

    return Rank(folder, events, attempt, stop).run()


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


def _report(error: BaseException, attempt: Path, rank: int, events: BackgroundEventWriter) -> int:
    """Write down why this rank failed, for the launcher to read; returns the exit code."""
    code = EXIT_INVALID if isinstance(error, UserError) else EXIT_FAILED
    # An error with a class says all in its sentence, as one of the user's does.
    is_told = code == EXIT_INVALID or hasattr(error, "what")
    of_disk = {"what": StorageError.what} if not is_told and is_of_disk(error) else {}
    record = {
        "time": time.time(),
        "rank": rank,
        "exit_code": code,
        "message": str(error) if is_told else f"{type(error).__name__}: {error}",
        "traceback": "" if code == EXIT_INVALID else traceback.format_exc(),
        **{name: getattr(error, name) for name in ("what", "step") if is_told and hasattr(error, name)},
        **of_disk,
    }

    def write() -> None:
        with suppress(OSError):
            write_atomically(attempt / "errors" / f"rank-{rank}.json", json.dumps(record))

    def log() -> None:
        with suppress(OSError):
            print(record["message"] if is_told else record["traceback"], file=sys.stderr, flush=True)

    # Each by itself, since both may be on a disk that is full, or hangs and must not keep the rank from leaving.
    reports = [threading.Thread(target=action, name="report", daemon=True) for action in (write, log)]
    for report in reports:
        report.start()
    events.flush(_LEAVE_S)
    for report in reports:
        report.join(_LEAVE_S)
    # An orderly interpreter shutdown could wait for ranks that are gone.
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
