"""What surrounds every step's work: its span in the event stream, its errors and its exit code."""

import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from training.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_INVALID, UserError
from training.events import INTERRUPTED, Event, EventWriter, Note, Span
from training.processes import die_with_ancestor, die_with_parent
from training.run_folder import RunFolder, run_name_from_job
from training.store import disk_errors, disk_problem


class Interrupted(BaseException):
    """SIGTERM reached the step: unwind, so that `finally` blocks put things in order."""


class StepFailed(RuntimeError):
    """The step's work failed elsewhere; the message holds the evidence, the step's own traceback does not.

    Args:
        message: For people.
        exit_code: Of the step.
    """

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Step:
    """Run one step's work as a span of the run.

    Leaving the block with a `UserError` prints its message alone and exits with `EXIT_INVALID`, and so does an
    error of the store's disk; with SIGTERM or Ctrl-C exits with `EXIT_INTERRUPTED`; with any other exception
    prints the traceback to the step's log, one line to the event stream, and exits with `EXIT_FAILED` (a
    `StepFailed` without the traceback, and with its own code).

    Args:
        name: The step's name, as in the graph.
        store: Root of the store.
        run: The run's name.
        job: The pipeline job's name, which names the run when `run` is empty.

    Attributes:
        run: The run's name.
        folder: The run's folder.
        detail: Set it to say, for people, what the step made.
    """

    stoppable = True
    """Whether a stop keeps the step from running, and interrupts it; see `ClosingStep`."""

    def __init__(self, name: str, store: str, run: str, job: str = "") -> None:
        self.name = name
        self.run = run or run_name_from_job(job)
        self.detail = ""
        try:
            self.folder = RunFolder(store, self.run)
            with disk_errors(self.folder.root):
                self._events = EventWriter(self.folder.events, name)
        except UserError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            sys.exit(EXIT_INVALID)

    def __enter__(self) -> Self:
        """Open the span."""
        self._handler_before = signal.signal(signal.SIGTERM, _interrupt if self.stoppable else _ignore)
        self._started = time.monotonic()
        # The pid of a pipeline that runs on this machine; in a cluster, the pod ends its processes itself.
        pipeline = os.environ.get("SHARDLINE_DIE_WITH_PARENT")
        try:
            if pipeline and self.stoppable:
                # Both: a shell is in between, and neither of the two passes the death of the other on.
                die_with_parent()
                die_with_ancestor(int(pipeline))
            self.write(Span(name=self.name, phase="start"))
            if self.stoppable and self.folder.stop_request.exists():
                raise Interrupted
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
        return self

    def note(self, text: str) -> None:
        """Say something to people: in the step's log and in the event stream."""
        print(text, flush=True)
        self.write(Note(text=text))

    def warn(self, text: str) -> None:
        """Say to people what they should look at, likewise."""
        print(text, flush=True)
        self.write(Note(level="warning", text=text))

    def write(self, event: Event) -> None:
        """Append an event to the run's stream."""
        self._events.write(event)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the span, and leave with the exit code that fits."""
        # What the step came to is settled: a SIGTERM from here on would only garble it.
        signal.signal(signal.SIGTERM, _ignore)
        code = 0
        if error is not None:
            code, self.detail = _judge(error, self.folder.root)
            if code == EXIT_FAILED and not isinstance(error, StepFailed):
                traceback.print_exception(error)
            # A path in an error need not be UTF-8, and an event has to be.
            self.detail = self.detail.encode(errors="backslashreplace").decode()
            print(f"{self.name}: {self.detail}", file=sys.stderr, flush=True)
        seconds = time.monotonic() - self._started
        span = Span(name=self.name, phase="end", ok=code == 0, seconds=seconds, detail=self.detail)
        try:
            self._events.write(span)
            self._events.close()
        except OSError:
            pass  # a full disk: the message is in the log already
        signal.signal(signal.SIGTERM, self._handler_before or signal.SIG_DFL)
        if code:
            # kfp's executor would print a traceback for any other exception.
            sys.exit(code)


class ClosingStep(Step):
    """A step that puts things in order, so that a stop neither prevents nor interrupts it."""

    stoppable = False


def _judge(error: BaseException, root: Path) -> tuple[int, str]:
    if isinstance(error, UserError):
        return EXIT_INVALID, str(error)
    if isinstance(error, Interrupted | KeyboardInterrupt):
        return EXIT_INTERRUPTED, f"{INTERRUPTED} a run of the same name goes on from what was saved"
    if isinstance(error, StepFailed):
        return error.exit_code, str(error)
    if isinstance(error, Exception) and (sentence := disk_problem(error, root)):
        return EXIT_INVALID, sentence
    return EXIT_FAILED, f"{type(error).__name__}: {error}"


def _interrupt(signum: int, frame: FrameType | None) -> None:
    # Once: a second signal would cut short the `finally` blocks that the first one started.
    signal.signal(signal.SIGTERM, _ignore)
    raise Interrupted


def _ignore(signum: int, frame: FrameType | None) -> None:
    # A handler that does nothing, rather than SIG_IGN, which child processes would inherit.
    pass
