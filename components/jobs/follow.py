"""Follows one attempt until it has ended, or until something has to be done about it."""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from components.cluster.job_state import Phase
from components.jobs.alerts import AlertWatch
from components.jobs.deadlines import Deadlines, Overdue
from components.jobs.launchers import Launcher
from components.jobs.nodes import NodeWatch
from components.jobs.seen import Seen
from components.jobs.settle import is_settled
from components.step import Step
from training.config import ResilienceConfig
from training.events import CHECKPOINT_WRITE, LOCAL, Alert, Evaluation, EventReader, RanksEnded, Span, TrainStep
from training.guard.place import Place
from training.run_folder import RunFolder

_PATIENCE_S = 10.0
"""Pods that wait for less are not worth a line."""

_ENDED = (Phase.SUCCEEDED, Phase.FAILED, Phase.GONE)


@dataclass(frozen=True)
class Watched:
    """An attempt that is followed.

    Attributes:
        folder: The run's, seen from the job.
        number: The attempt's.
        num_nodes: Its nodes.
        known: Nodes that ran an attempt before in the same place.
        began: See `Deadlines`.
        replacement_s: Seconds after which an attempt that lacks machines is overdue; None: never.
        why_kept: See `AlertWatch`.
        on_phase: Called with what `Deadlines.began` is when a phase begins.
    """

    folder: RunFolder
    number: int
    num_nodes: int
    known: Mapping[int, Place] = field(default_factory=dict)
    began: Mapping[str, float] = field(default_factory=dict)
    replacement_s: float | None = None
    why_kept: Callable[[Mapping[str, str]], str] = lambda hosts: ""
    on_phase: Callable[[Mapping[str, float]], None] = lambda began: None


def follow(step: Step, launcher: Launcher, limits: ResilienceConfig, watched: Watched) -> Seen:
    """Show an attempt's progress until it ends, its ranks do, or it must not go on as it is.

    Args:
        step: The step at work.
        launcher: Of the attempt.
        limits: From the configuration.
        watched: The attempt.
    """
    return _Follower(step, launcher, limits, watched).run()


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


class _Follower:
    def __init__(self, step: Step, launcher: Launcher, limits: ResilienceConfig, watched: Watched) -> None:
        self._step = step
        self._launcher = launcher
        self._limits = limits
        self._watched = watched
        self._deadlines = Deadlines(limits, time.monotonic(), watched.began)
        self._nodes = self._watch_nodes(watched.known)
        self._alerts = AlertWatch(watched.why_kept, lambda text: print(text, flush=True))
        self._waiting = _Waiting(step)
        self._told: dict[int, RanksEnded] = {}
        self._told_since = 0.0
        self._newest: int | None = None
        self._on_nodes = 0

    def run(self) -> Seen:
        reader = EventReader(self._watched.folder.events)
        # What was before this start has been told to people already, but a launcher before may not have acted.
        for event in reader.poll():
            if event.attempt == self._watched.number:
                self._take(event)
        phase = None
        while True:
            before, phase = phase, self._launcher.poll()
            if phase is not before:
                self._begin(phase)
            fresh = list(reader.poll())
            for event in fresh:
                self._take(event)
                self._show(event)
            if (seen := self._look(phase, said=any(map(self._is_of_job, fresh)))) is not None:
                return seen
            time.sleep(self._launcher.poll_s)

    def _look(self, phase: Phase, *, said: bool) -> Seen | None:
        """What there is to be acted on now, if anything."""
        now = time.monotonic()
        if phase in _ENDED:
            return self._seen(has_ended=True)
        if phase in (Phase.QUEUED, Phase.STARTING):
            self._waiting.tell(self._launcher)
        stirred = self._nodes.look()
        overdue = self._deadlines.check(phase, progressed=said or stirred, now=now)
        overdue = overdue or self._lacks_machines(phase, now)
        if overdue is not None:
            return self._seen(overdue=overdue)
        if phase not in (Phase.STARTING, Phase.RUNNING):
            return None
        if phase is Phase.RUNNING and (lost := self._nodes.lost(self._limits.node_timeout_s, self._told)):
            return self._seen(lost=lost)
        waited, since = now - self._told_since, self._told_since
        # First, because ranks that do not reach each other hang, and are ended for that.
        fatal, slow = self._alerts.fatal(now), self._alerts.slow(now)
        if fatal or slow:
            return self._seen(fatal=fatal, slow=slow)
        settled = is_settled(
            self._told, self._watched.num_nodes, waited, lambda node: self._nodes.lives(node, since)
        )
        return self._seen() if settled else None

    def _seen(self, **found: Any) -> Seen:
        return Seen(
            told=self._told, places=self._nodes.places, step=self._newest, on_nodes=self._on_nodes, **found
        )

    def _begin(self, phase: Phase) -> None:
        if phase is Phase.QUEUED:
            # A job that its queue took back starts its ranks again, maybe on other machines.
            shutil.rmtree(self._watched.folder.attempt(self._watched.number) / "nodes", ignore_errors=True)
            self._told, self._nodes, self._on_nodes = {}, self._watch_nodes({}), 0
        if phase in (Phase.QUEUED, Phase.STARTING):
            self._step.note("the job waits in its queue" if phase is Phase.QUEUED else "the job's pods start")
        self._deadlines.check(phase, progressed=False, now=time.monotonic())
        self._watched.on_phase(self._deadlines.began)

    def _watch_nodes(self, known: Mapping[int, Place]) -> NodeWatch:
        watched = self._watched
        return NodeWatch(watched.folder, watched.number, watched.num_nodes, known)

    def _lacks_machines(self, phase: Phase, now: float) -> Overdue | None:
        most = self._watched.replacement_s
        if most is None or phase is not Phase.STARTING or self._deadlines.waited_s(now) <= most:
            return None
        if not self._launcher.lacks_machines():
            return None
        return Overdue(
            "no_replacement", f"no machine came within {most:g} s, which is resilience.replacement_timeout_s"
        )

    def _take(self, event: Any) -> None:
        if not self._is_of_job(event):
            return
        if isinstance(event, RanksEnded) and event.attempt == self._watched.number:
            self._told_since = self._told_since if self._told else time.monotonic()
            self._told[event.node] = event
        elif isinstance(event, Span) and event.phase == "start" and self._is_of_node(event):
            self._told.pop(_number(event.source), None)  # it starts its ranks once more
        elif isinstance(event, Alert) and event.attempt in (0, self._watched.number):
            # When it was, also for a launcher that reads it only now.
            self._alerts.take(event, time.monotonic() - max(0.0, time.time() - event.time))
        elif isinstance(event, TrainStep):
            self._newest = event.step
        elif isinstance(event, Span) and event.name == CHECKPOINT_WRITE and event.detail == LOCAL:
            self._on_nodes = event.step or 0

    def _is_of_node(self, event: Any) -> bool:
        return bool(event.source.startswith(self._watched.folder.node_prefix))

    def _is_of_job(self, event: Any) -> bool:
        folder = self._watched.folder
        return bool(event.source.startswith((folder.rank_prefix, folder.node_prefix)))

    def _show(self, event: Any) -> None:
        line = None if self._launcher.forwards_logs else _progress_line(event, self._watched.folder.rank_prefix)
        if line:
            print(line, flush=True)
        if isinstance(event, TrainStep):
            self._launcher.report_progress(progress_of(event))


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


def _number(source: str) -> int:
    number = source.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


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
