"""Figures of runs for notebooks: one that has ended, one that goes on, and several side by side."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from components.evaluate.formats import as_count, as_duration, as_loss, as_tick
from pipelines.jobs.model import RunView
from training.history import History

Points = Sequence[tuple[float, float]]
"""Step and value, ascending."""

_INK, _QUIET, _RULE = "#1b222c", "#57616e", "#dfe3e8"
_TRAIN, _BASE, _TUNED = "#3667a6", "#8f5a10", "#0b7159"
_SEVERAL = ("#3667a6", "#b4540a", "#0b7159", "#8b3f8f", "#a62c3c", "#57616e", "#8a7a00", "#1b8aa0")
"""Told apart by those who do not see red and green apart too, by their lightness."""

_STYLE = {
    "font.size": 10,
    "text.color": _INK,
    "text.parse_math": False,
    "axes.edgecolor": _RULE,
    "axes.labelcolor": _QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titlecolor": _QUIET,
    "axes.axisbelow": True,
    "grid.color": _RULE,
    "xtick.color": _RULE,
    "ytick.color": _RULE,
    "xtick.labelcolor": _QUIET,
    "ytick.labelcolor": _QUIET,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
}

_TICKS = [1, 2, 5, 10]
"""Distances between ticks that people count in, times a power of ten."""

_SMOOTHED_FROM = 30
"""Points from which single steps hide the trend."""


def training_figure(history: History, base_loss: float | None = None, tuned_loss: float | None = None) -> Figure:
    """Loss and throughput of a training, with the held-out losses before and after.

    Args:
        history: The training's.
        base_loss: Held-out loss of the base model; None: not drawn.
        tuned_loss: The same of the tuned model.
    """
    losses = [(float(step.step), step.loss) for step in history.steps]
    speeds = [(float(step.step), step.tokens_per_s) for step in history.steps]
    heldout = [(float(step), evaluation.loss) for step, evaluation in history.heldout.items()]
    with matplotlib.rc_context(_STYLE):
        figure, loss, speed = _loss_and_speed(losses, speeds)
        if heldout:
            loss.plot(*zip(*heldout, strict=True), color=_TUNED, marker="o", markersize=4, label="held-out")
        for name, level, color in (("base model", base_loss, _BASE), ("tuned model", tuned_loss, _TUNED)):
            if level is not None:
                label = f"held-out, {name}: {as_loss(level)}"
                loss.axhline(level, color=color, linestyle=(0, (4, 3)), linewidth=1.4, label=label)
        if losses:
            loss.legend(loc="best", labelcolor=_INK, fontsize=9)
        if history.tokens_per_s is not None:
            median = history.tokens_per_s
            speed.axhline(median, color=_QUIET, linestyle=(0, (2, 3)), linewidth=1.2)
            speed.set_title(f"tokens/s of all ranks, median {as_count(median)}")
    return figure


def progress_figure(views: Sequence[RunView]) -> Figure:
    """Loss and throughput of a run that goes on, under a line that says how far it is.

    Args:
        views: What has been seen of it so far, in order; of a step that was seen twice, the later counts.
    """
    losses = {float(view.step): view.loss for view in views if view.step is not None and view.loss is not None}
    speeds = {
        float(view.step): view.tokens_per_s
        for view in views
        if view.step is not None and view.tokens_per_s is not None
    }
    with matplotlib.rc_context(_STYLE):
        figure, loss, speed = _loss_and_speed(sorted(losses.items()), sorted(speeds.items()))
        newest = views[-1] if views else None
        if newest is not None and newest.num_steps:
            for axes in (loss, speed):
                axes.set_xlim(-0.02 * newest.num_steps, 1.02 * newest.num_steps)
        figure.suptitle(_headline(newest), x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure


def comparison_figure(curves: Mapping[str, Points], quantity: str) -> Figure:
    """One quantity of several runs in one plot.

    Args:
        curves: The runs' points, by what the legend says of each.
        quantity: What is drawn, for the title.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9, 4), dpi=110, layout="constrained")
        axes = figure.subplots()
        for index, (name, points) in enumerate(curves.items()):
            style = ("-", (0, (4, 2)), (0, (1, 1)))[index // len(_SEVERAL) % 3]
            _line(axes, points, _SEVERAL[index % len(_SEVERAL)], name, linestyle=style)
        axes.set_title(quantity)
        _axes_of_steps(axes)
        if curves:
            # Beside the curves, which may be anywhere.
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1), labelcolor=_INK)
    return figure


def _loss_and_speed(losses: Points, speeds: Points) -> tuple[Figure, Any, Any]:
    figure = Figure(figsize=(10, 3.6), dpi=110, layout="constrained")
    loss, speed = figure.subplots(1, 2, width_ratios=[3, 2])
    _line(loss, losses, _TRAIN, "training")
    loss.set_title("loss, nats per supervised token")
    _line(speed, speeds, _TRAIN, "")
    speed.set_title("tokens/s of all ranks")
    known = [value for _, value in speeds if math.isfinite(value)]
    speed.set_ylim(0, max(known, default=0) * 1.15 or 1)
    speed.yaxis.set_major_formatter(FuncFormatter(lambda value, _: as_tick(value)))
    for axes in (loss, speed):
        _axes_of_steps(axes)
        if not losses:
            _say_that_empty(axes)
    return figure, loss, speed


def _line(axes: Any, points: Points, color: str, label: str, **style: Any) -> None:
    x, y = [step for step, _ in points], [value for _, value in points]
    smooth = _smoothed(y)
    if smooth != y:
        axes.plot(x, y, color=color, alpha=0.3, linewidth=0.9)
    # A line through few points hides where they are.
    axes.plot(x, smooth, color=color, label=label, marker="o" if len(x) <= 12 else None, markersize=4, **style)


def _axes_of_steps(axes: Any) -> None:
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1, steps=_TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=_TICKS))
    axes.margins(x=0.02, y=0.1)


def _say_that_empty(axes: Any) -> None:
    axes.set_yticks([])
    axes.set_xticks([])
    axes.text(0.5, 0.5, "no step yet", transform=axes.transAxes, ha="center", color=_QUIET)


def _smoothed(values: list[float]) -> list[float]:
    """Running mean; the values themselves where they are few."""
    if len(values) < _SMOOTHED_FROM:
        return values
    half, last = max(2, len(values) // 30), len(values) - 1
    means = []
    for index in range(len(values)):
        # Shrinks on both sides at the steep beginning, where the mean would lean; at the end a last value alone,
        # which is read as the result, would be chance.
        before = min(half, index)
        window = values[index - before : index + min(before, last - index) + 1]
        means.append(sum(window) / len(window))
    return means


def _headline(view: RunView | None) -> str:
    if view is None:
        return "waiting for the run"
    parts = [view.run]
    if view.ended:
        parts.append("succeeded" if view.succeeded else "did not succeed")
    elif view.stage and view.stage != "train":
        parts.append(f"at the step {view.stage}")
    elif view.newest is not None:
        parts.append(f"attempt {view.newest.number} {view.phase}")
    if view.step is not None:
        parts.append(f"step {view.step:,}/{view.num_steps:,}" if view.num_steps else f"step {view.step:,}")
    if not view.ended and view.phase == "running" and view.seconds_left:
        parts.append(f"{as_duration(view.seconds_left)} left")
    return "  ·  ".join(parts)
