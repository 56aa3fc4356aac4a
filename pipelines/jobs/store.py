"""Looks at runs through their folders in a store: those on this machine, and any whose store is mounted here."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from components.cluster.job_state import Phase
from components.jobs.attempts import read_record
from components.jobs.report import NAME as REPORT
from pipelines.jobs.local import graph_of
from pipelines.jobs.model import AttemptView, RunView
from pipelines.progress import STEPS
from training.errors import UserError
from training.events import INTERRUPTED, Decided, EventReader, Incident, Span, TrainStep
from training.run_folder import RunFolder

_KINDS = {"pytorchjob": "PyTorchJob", "trainjob": "TrainJob"}

_SILENT_S = 120.0
"""A launcher without a heartbeat for so long is dead; it beats every few seconds."""

_WORDS = 3
"""Last lines of a failed rank that are shown; the report has them all."""


def view_stored_run(folder: RunFolder) -> RunView:
    """A run as its folder tells it now."""
    return _StoredRun(folder).view()


def view_stored_runs(store: Path) -> list[RunView]:
    """All runs of a store, the one that changed last first."""
    folders = [RunFolder(store, run) for run in stored_runs(store)]
    folders.sort(key=lambda folder: max(_changed(folder.events), _changed(folder.path)), reverse=True)
    return [view_stored_run(folder) for folder in folders]


def watch_stored_run(folder: RunFolder, interval_s: float = 1.0) -> Iterator[RunView]:
    """A run as its folder tells it, and again whenever that changes, until the run has ended.

    A run on this machine has ended when its command has; any other when its newest attempt has.

    Args:
        folder: The run's.
        interval_s: Between two looks.
    """
    run = _StoredRun(folder)
    before: RunView | None = None
    while True:
        view = run.view()
        if view != before:
            yield view
        if view.ended:
            return
        before = view
        time.sleep(interval_s)


def stored_runs(store: Path) -> list[str]:
    """Names of the runs of a store."""
    runs = store / "runs"
    return sorted(path.parent.name for path in runs.glob("*/events")) if runs.is_dir() else []


class _StoredRun:
    """What is known of a run from the events so far."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._reader = EventReader(folder.events)
        self._steps: dict[int, TrainStep] = {}
        self._incidents: dict[int, Incident] = {}
        self._decisions: dict[int, Decided] = {}
        self._spans: dict[str, Span] = {}
        try:
            self._num_nodes = folder.config().parallel.num_nodes
        except UserError:
            self._num_nodes = 1  # preflight has not written it yet, or another version has

    def view(self) -> RunView:
        # Asked before reading: what a run writes before its end is then in what is read.
        runs_here = graph_of(self._folder) is not None
        lives = runs_here or time.time() - _changed(self._folder.launcher_heartbeat) < _SILENT_S
        for event in self._reader.poll():
            self._take(event)
        attempts = tuple(self._attempt(number, lives) for number in self._folder.attempts())
        ended = not runs_here and (not attempts or attempts[-1].has_ended)
        failed = self._failed() if ended else None
        return RunView(
            self._folder.run,
            f"store {self._folder.root}",
            attempts,
            stage=self._stage() if lives else "",
            ended_at="" if failed is None else failed.name,
            stopped=failed is not None and failed.detail.startswith(INTERRUPTED),
            reasons=() if failed is None else tuple(filter(str.strip, failed.detail.splitlines())),
            ended=ended,
            succeeded=self._succeeded(attempts) if ended else None,
        )

    def _take(self, event: Any) -> None:
        if isinstance(event, TrainStep):
            self._steps[event.attempt] = event
        elif isinstance(event, Incident):
            self._incidents[event.attempt] = event
        elif isinstance(event, Decided):
            self._decisions[event.attempt] = event
        elif isinstance(event, Span) and event.name in STEPS and event.source == event.name:
            self._spans.pop(event.name, None)
            self._spans[event.name] = event  # at the end again: the newest is the last

    def _stage(self) -> str:
        newest = next(reversed(self._spans.values()), None)
        return newest.name if newest is not None and newest.phase == "start" else ""

    def _failed(self) -> Span | None:
        """The end of the step that the run did not get past; None if there is none since it last began."""
        first: Span | None = None
        for span in reversed(self._spans.values()):
            # The first: steps beside and after one that failed are interrupted, or fail because it did.
            if span.phase == "end" and not span.ok:
                first = span
            if span.name == "preflight":
                break
        return first

    def _succeeded(self, attempts: tuple[AttemptView, ...]) -> bool:
        failed = any(span.phase == "end" and not span.ok for span in self._spans.values())
        return bool(attempts) and attempts[-1].phase == Phase.SUCCEEDED.value and not failed

    def _attempt(self, number: int, lives: bool) -> AttemptView:
        record = read_record(self._folder, number)
        step = self._steps.get(number)
        launcher = str(record.get("launcher", "local"))
        return AttemptView(
            number=number,
            phase=_phase(record, lives and number == max(self._folder.attempts())),
            kind=_KINDS.get(launcher, launcher),
            job=str(record.get("name", "")),
            num_nodes=self._num_nodes,
            started=record.get("started"),
            ended=record.get("ended"),
            step=None if step is None else step.step,
            num_steps=None if step is None else step.num_steps,
            loss=None if step is None else step.loss,
            tokens_per_s=None if step is None else step.tokens_per_s,
            seconds_left=None if step is None else step.seconds_left,
            told=None if step is None else step.time,
            reasons=self._reasons(number),
        )

    def _reasons(self, number: int) -> tuple[str, ...]:
        incident, decided = self._incidents.get(number), self._decisions.get(number)
        then = [] if decided is None else [f"{decided.action.replace('_', ' ')}: {decided.reason}"]
        if incident is None:
            return tuple(then)
        code = "" if incident.exit_code is None else f" (exit code {incident.exit_code})"
        host = f" on {incident.host}" if incident.host else ""
        words = [line for line in incident.evidence.splitlines() if line.strip()][-_WORDS:]
        report = self._folder.attempt(number) / REPORT
        more = [f"see {report}"] if report.is_file() else []
        return (f"{incident.what.replace('_', ' ')}{code}{host}", *then, *words, *more)


def _phase(record: dict[str, Any], lives: bool) -> str:
    outcome = record.get("outcome")
    if outcome is None:
        return Phase.RUNNING.value if lives else "lost"
    names = {"succeeded": Phase.SUCCEEDED.value, "interrupted": "stopped", "no_replacement": "stopped"}
    names |= {"lost": "lost", "not_begun": "lost"}
    return names.get(outcome, Phase.FAILED.value)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
