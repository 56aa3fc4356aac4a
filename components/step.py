"""What surrounds every step's work: its span in the event stream, its errors and its exit code."""

import signal
import sys
import time
import traceback
from types import FrameType, TracebackType

from training.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_INVALID, UserError
from training.events import Event, EventWriter, Note, Span
from training.run_folder import RunFolder, run_name_from_job
from training.store import disk_errors


class Interrupted(BaseException):
    """SIGTERM reached the step: unwind, so that `finally` blocks put things in order."""


class StepFailed(RuntimeError):
    """The step's work failed elsewhere; the message holds the evidence, the step's own traceback does not."""


class Step:
    """Run one step's work as a span of the run.

    Leaving the block with a `UserError` prints its message alone and exits with `EXIT_INVALID`; with SIGTERM or
    Ctrl-C exits with `EXIT_INTERRUPTED`; with any other exception prints the traceback to the step's log, one
    line to the event stream, and exits with `EXIT_FAILED` (a `StepFailed` without the traceback).

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

    runs_when_stopping = False
    """Whether the step has to run even if the run was asked to stop; see `ClosingStep`."""

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

    def __enter__(self) -> "Step":
        """Open the span."""
        signal.signal(signal.SIGTERM, _interrupt)
        self._started = time.monotonic()
        self._events.write(Span(name=self.name, phase="start"))
        if self.folder.stop_request.exists() and not self.runs_when_stopping:
            self.__exit__(Interrupted, Interrupted(), None)
        return self

    def note(self, text: str) -> None:
        """Say something to people: in the step's log and in the event stream."""
        print(text, flush=True)
        self.write(Note(text=text))

    def write(self, event: Event) -> None:
        """Append an event to the run's stream."""
        self._events.write(event)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the span, and leave with the exit code that fits."""
        code = 0
        if error is not None:
            code, self.detail = _judge(error)
            if code == EXIT_FAILED and not isinstance(error, StepFailed):
                traceback.print_exception(error)
            print(f"{self.name}: {self.detail}", file=sys.stderr, flush=True)
        seconds = time.monotonic() - self._started
        span = Span(name=self.name, phase="end", ok=code == 0, seconds=seconds, detail=self.detail)
        try:
            self._events.write(span)
            self._events.close()
        except OSError:
            pass  # a full disk: the message is in the log already
        if code:
            # kfp's executor would print a traceback for any other exception.
            sys.exit(code)


class ClosingStep(Step):
    """A step that puts things in order, so that a stop neither prevents nor interrupts it."""

    runs_when_stopping = True

    def __enter__(self) -> "ClosingStep":
        """Open the span, deaf to SIGTERM."""
        super().__enter__()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return self


def _judge(error: BaseException) -> tuple[int, str]:
    if isinstance(error, UserError):
        return EXIT_INVALID, str(error)
    if isinstance(error, Interrupted | KeyboardInterrupt):
        return EXIT_INTERRUPTED, "interrupted; a run of the same name goes on from what was saved"
    if isinstance(error, StepFailed):
        return EXIT_FAILED, str(error)
    return EXIT_FAILED, f"{type(error).__name__}: {error}"


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise Interrupted
