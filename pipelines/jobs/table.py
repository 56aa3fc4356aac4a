"""Runs as tables for people, and as lines where there is no terminal."""

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipelines.jobs.model import AttemptView, RunView
from pipelines.jobs.times import show_age, show_duration

_STYLES = {
    "running": "green",
    "succeeded": "bold green",
    "failed": "bold red",
    "lost": "bold red",
    "gone": "yellow",
    "stopped": "yellow",
}

TABLE_WIDTH = 80
"""Columns that a table needs; in fewer, its numbers would be cut."""

_NUMBERS = {"step", "loss", "tokens/s", "ETA", "nodes", "pods", "attempt", "age"}


def runs_table(views: Sequence[RunView], now: float) -> RenderableType:
    """A row for each attempt of each run.

    Args:
        views: The runs.
        now: The time, in seconds since the epoch.
    """
    table = _table("run", "attempt", "phase", "nodes", *_PROGRESS)
    for view in views:
        for attempt in reversed(view.attempts):
            number, nodes = str(attempt.number), str(attempt.num_nodes)
            table.add_row(Text(view.run), number, _phase(attempt), nodes, *_progress(attempt, now))
        # How training ended is in the attempt's row.
        if not view.attempts or view.ended_at not in ("", "train"):
            table.add_row(Text(view.run), "-", _step(view), "-", *["-"] * len(_PROGRESS))
    return table


def run_table(view: RunView, now: float) -> RenderableType:
    """A run's attempts, and below them what it and they wait for or why they failed.

    Args:
        view: The run.
        now: The time, in seconds since the epoch.
    """
    stage = f", {_at(view)}" if _at(view) else ""
    title = Text.assemble((view.run, "bold"), f" in the {view.where}{stage}")
    table = _table("attempt", "phase", "pods", *_PROGRESS)
    for attempt in view.attempts:
        table.add_row(str(attempt.number), _phase(attempt), _pods(attempt), *_progress(attempt, now))
    reasons = [Text(f"attempt {a.number}: {reason}", style="dim") for a in view.attempts for reason in a.reasons]
    return Group(title, *([table] if view.attempts else []), *map(Text, view.reasons), *reasons)


def runs_as_lines(views: Sequence[RunView], now: float) -> RenderableType:
    """What the tables show, for a terminal that is too narrow for one.

    Args:
        views: The runs.
        now: The time, in seconds since the epoch.
    """
    lines = [line for view in views for line in change_lines(None, view, now) or [f"{view.run}: no attempt yet"]]
    return Group(*map(Text, lines))


def change_lines(before: RunView | None, view: RunView, now: float) -> list[str]:
    """Lines that tell what is new in a run since the view before."""
    lines = []
    old = {attempt.number: attempt for attempt in before.attempts} if before else {}
    if _at(view) and (before is None or _at(view) != _at(before)):
        lines.append(f"{view.run}: {_at(view)}")
    lines += [f"{view.run}: {reason}" for reason in view.reasons if before is None or reason not in before.reasons]
    for attempt in view.attempts:
        seen = old.get(attempt.number)
        if (told := _line(attempt, now)) and (seen is None or _told(attempt) != _told(seen)):
            lines.append(f"{view.run} attempt {attempt.number}: {told}")
        fresh = [reason for reason in attempt.reasons if seen is None or reason not in seen.reasons]
        lines += [f"{view.run} attempt {attempt.number}: {reason}" for reason in fresh]
    return lines


_PROGRESS = ("age", "step", "loss", "tokens/s", "ETA")


def _progress(attempt: AttemptView, now: float) -> list[str]:
    step = None if attempt.step is None else f"{attempt.step}/{attempt.num_steps}"
    return [
        _or_dash(attempt.started, lambda started: show_age(now - started)),
        step or "-",
        _or_dash(attempt.loss, lambda loss: f"{loss:.3f}"),
        _or_dash(attempt.tokens_per_s, lambda rate: f"{rate:,.0f}"),
        _or_dash(attempt.eta_s(now), show_duration),
    ]


def _line(attempt: AttemptView, now: float) -> str:
    parts = [attempt.phase]
    if attempt.pods_ready is not None:
        parts.append(f"{_pods(attempt)} pods ready")
    if attempt.step is not None:
        parts.append(f"step {attempt.step}/{attempt.num_steps}")
        if attempt.loss is not None:
            parts.append(f"loss {attempt.loss:.3f}")
        if attempt.tokens_per_s is not None:
            parts.append(f"{attempt.tokens_per_s:,.0f} tokens/s")
        if (eta := attempt.eta_s(now)) is not None:
            parts.append(f"{show_duration(eta)} left")
    return ", ".join(parts)


def _at(view: RunView) -> str:
    if view.ended_at:
        return f"{_ending(view)} at the step {view.ended_at}"
    return f"at the step {view.stage}" if view.stage else ""


def _step(view: RunView) -> Text:
    if view.ended_at:
        return Text(f"{_ending(view)} at {view.ended_at}", style=_STYLES[_ending(view)])
    return Text(view.stage or "-")


def _ending(view: RunView) -> str:
    return "stopped" if view.stopped else "failed"


def _told(attempt: AttemptView) -> tuple[object, ...]:
    """What of an attempt is worth a line when it changes."""
    return (attempt.phase, attempt.pods_ready, attempt.step)


def _pods(attempt: AttemptView) -> str:
    return "-" if attempt.pods_ready is None else f"{attempt.pods_ready}/{attempt.num_nodes}"


def _phase(attempt: AttemptView) -> Text:
    return Text(attempt.phase, style=_STYLES.get(attempt.phase, ""))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, justify="right" if column in _NUMBERS else "left", no_wrap=column != "run")
    return table


def _or_dash(value: float | None, show: Callable[[float], str]) -> str:
    return "-" if value is None else show(value)
