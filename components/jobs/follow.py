"""Follows one attempt to its end: its progress, what it waits for, and its limits."""

import time
from typing import Any

from components.cluster.job_state import Phase
from components.jobs.deadlines import Deadlines, Overdue
from components.jobs.launchers import Launcher
from components.step import Step
from training.config import ResilienceConfig
from training.events import Evaluation, EventReader, Span, TrainStep

_POLL_S = 0.3

_PATIENCE_S = 10.0
"""Pods that wait for less are not worth a line."""


def follow(step: Step, launcher: Launcher, limits: ResilienceConfig, rank_prefix: str) -> Overdue | None:
    """Show an attempt's progress until it ends.

    Args:
        step: The step at work.
        launcher: Of the attempt.
        limits: From the configuration.
        rank_prefix: See `RunFolder.rank_prefix`.

    Returns:
        The limit that it passed, in which case it still runs; None if it ended by itself.
    """
    reader = EventReader(step.folder.events)
    list(reader.poll())  # what was before this attempt has been told
    deadlines = Deadlines(limits, time.monotonic())
    waiting = _Waiting(step)
    phase = None
    while True:
        before, phase = phase, launcher.poll()
        if phase is not before and phase in (Phase.QUEUED, Phase.STARTING):
            step.note("the job waits in its queue" if phase is Phase.QUEUED else "the job's pods start")
        fresh = list(reader.poll())
        for event in fresh:
            line = None if launcher.forwards_logs else _progress_line(event, rank_prefix)
            if line:
                print(line, flush=True)
        newest = next((event for event in reversed(fresh) if isinstance(event, TrainStep)), None)
        if newest is not None:
            launcher.report_progress(progress_of(newest))
        if phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.GONE):
            return None
        if phase in (Phase.QUEUED, Phase.STARTING):
            waiting.tell(launcher)
        progressed = any(event.source.startswith(rank_prefix) for event in fresh)
        overdue = deadlines.check(phase, progressed=progressed, now=time.monotonic())
        if overdue is not None:
            return overdue
        time.sleep(_POLL_S)


def progress_of(event: TrainStep) -> dict[str, object]:
    """What of a step is shown beside the job."""
    return {
        "step": event.step,
        "num_steps": event.num_steps,
        "loss": round(event.loss, 4),
        "tokens_per_s": round(event.tokens_per_s),
        "seconds_left": round(event.seconds_left),
        "time": round(event.time),
    }


class _Waiting:
    """Says once what each pod waits for."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._told: set[str] = set()
        self._next = time.monotonic() + _PATIENCE_S

    def tell(self, launcher: Launcher) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _PATIENCE_S
        for reason in launcher.waiting():
            if reason not in self._told:
                self._told.add(reason)
                self._step.warn(reason)


def _progress_line(event: Any, rank_prefix: str) -> str | None:
    if isinstance(event, TrainStep):
        return (
            f"step {event.step}/{event.num_steps}  loss {event.loss:.4f}  {event.tokens_per_s:,.0f} tokens/s  "
            f"{event.memory_gib:.2f} GiB a rank  about {event.seconds_left:.0f} s left"
        )
    if isinstance(event, Evaluation) and event.step is not None:
        return f"step {event.step}  held-out loss {event.loss:.4f}"
    if isinstance(event, Span) and event.source == f"{rank_prefix}0" and event.phase == "end" and event.ok:
        return f"{event.name.replace('_', ' ')} took {event.seconds:.1f} s"
    return None
