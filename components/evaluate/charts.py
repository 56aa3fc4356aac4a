"""Charts of the training as SVG that becomes a part of an HTML page.

Text stays text and takes the page's font; colours are CSS variables of the page, so that one chart serves light
and dark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.ticker import FuncFormatter, MaxNLocator

from components.charts import BASE, INK, QUIET, STYLE, TRAIN, TUNED, as_svg, new_figure
from components.evaluate.formats import as_count, as_loss, as_percent, as_rate, as_tick
from training.events import TrainStep
from training.history import History

_TICKS = [1, 2, 5, 10]
"""Distances between ticks that people count in, times a power of ten."""

_MAX_POINTS = 500
"""More than the pixels of a chart can tell apart only makes the page heavy."""

_MAX_DOTS = 40
"""Dots on a line."""

_SMOOTHED_FROM = 30
"""Points from which single steps hide the trend."""


@dataclass(frozen=True)
class Chart:
    """A chart for a page.

    Attributes:
        title: What it shows.
        svg: The drawing, safe to put into HTML as it is.
        caption: How to read it.
    """

    title: str
    svg: str
    caption: str


def loss_chart(history: History, base_loss: float, tuned_loss: float) -> Chart:
    """Training loss by step with both held-out losses as levels, and the learning rate below.

    Args:
        history: The training; it has at least one step.
        base_loss: Held-out loss of the base model, in nats per token.
        tuned_loss: Held-out loss of the tuned model, in nats per token.
    """
    x, losses = _thinned(history.steps, [step.loss for step in history.steps])
    smooth = _smoothed(losses)
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "loss"}):
        figure = new_figure(width=820, height=380)
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[6, 1])
        figure.subplots_adjust(left=48 / 820, right=1 - 150 / 820, top=1 - 12 / 380, bottom=44 / 380, hspace=0.16)
        _resumptions(top, history)
        top.axhline(base_loss, color=BASE, linestyle=(0, (4, 4)))
        # Half a period later: equal losses show as both colours in turn.
        top.axhline(tuned_loss, color=TUNED, linestyle=(4, (4, 4)))
        if smooth != losses:
            top.plot(x, losses, color=TRAIN, alpha=0.5, linewidth=1)
        top.plot(x, smooth, color=TRAIN, marker="o" if len(x) == 1 else None)
        measured = {step: evaluation.loss for step, evaluation in history.heldout.items()}
        if measured:
            # With a dot at each, many would become a band.
            every = -(-len(measured) // _MAX_DOTS)
            dots = {"marker": "o", "markersize": 5, "markevery": every}
            top.plot(list(measured), list(measured.values()), color=TUNED, linewidth=1, **dots)
        top.margins(y=0.08)
        top.yaxis.set_major_locator(MaxNLocator(6, steps=_TICKS))
        _labels_at_the_end(
            top,
            {
                f"held-out, base  {as_loss(base_loss)}": (base_loss, BASE),
                f"held-out, tuned  {as_loss(tuned_loss)}": (tuned_loss, TUNED),
                f"training  {as_loss(smooth[-1])}": (smooth[-1], TRAIN),
            },
        )
        rates = [step.learning_rate for step in history.steps]
        bottom.plot(*_thinned(history.steps, rates), color=QUIET, linewidth=1.5)
        bottom.set_ylim(0, max(rates) * 1.15 or 1)
        bottom.set_yticks([])
        bottom.grid(False)
        bottom.annotate(
            f"learning rate,\nup to {as_rate(max(rates))}",
            (1.02, 0.5),
            xycoords="axes fraction",
            va="center",
            color=QUIET,
        )
        _step_axis(bottom, history, max_ticks=8)
        first, last = history.steps[0], history.steps[-1]
        summary = (
            f"Training loss from {as_loss(first.loss)} at step {first.step} to {as_loss(last.loss)} at step "
            f"{last.step}; held-out loss {as_loss(base_loss)} of the base model and {as_loss(tuned_loss)} of the "
            "tuned model."
        )
        if measured:
            summary += f" While training, held-out loss went {_from_to(measured)}."
        svg = as_svg(figure, "loss", summary)
    caption = "Cross-entropy in nats per supervised token; dashed: held-out loss before and after."
    if measured:
        # It may be less than is measured before and after, and then the dots may end beside the dashes.
        count = as_count(history.heldout[max(measured)].num_supervised)
        caption += f" Line with dots: held-out loss while training, over {count} tokens."
    if smooth != losses:
        caption += " Bold: running mean."
    return Chart("Loss", svg, caption)


def _from_to(losses: Mapping[int, float]) -> str:
    first, last = min(losses), max(losses)
    return f"from {as_loss(losses[first])} at step {first} to {as_loss(losses[last])} at step {last}"


def throughput_chart(history: History) -> Chart:
    """Tokens per second by step, over all ranks; the history has at least one step."""
    median = history.tokens_per_s
    assert median is not None
    svg = _small_chart(
        history,
        "throughput",
        [step.tokens_per_s for step in history.steps],
        level=median,
        label=f"median {as_count(median)}",
        summary=f"Tokens per second by step; the median is {as_count(median)}.",
    )
    return Chart("Throughput", svg, "Tokens per second over all ranks. The first step includes warm-up.")


def memory_chart(history: History) -> Chart:
    """Peak memory by step; the history has at least one step."""
    peak = history.peak_memory_gib
    assert peak is not None
    svg = _small_chart(
        history,
        "memory",
        [step.memory_gib for step in history.steps],
        level=peak,
        label=f"peak {peak:.2f} GiB",
        summary=f"Memory of the fullest rank by step; the peak is {peak:.2f} GiB.",
    )
    return Chart("Memory", svg, "GiB on the fullest rank: of the accelerator, or resident on a CPU.")


def split_chart(history: History) -> Chart:
    """Where the steps' time went, as shares; the history has a split."""
    split = {phase: seconds for phase, seconds in history.split.items() if seconds > 0}
    total = sum(split.values())
    shares = {phase: seconds / total for phase, seconds in split.items()}
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "split"}):
        figure = new_figure(width=400, height=220)
        axes = figure.subplots()
        figure.subplots_adjust(left=86 / 400, right=1 - 64 / 400, top=1 - 12 / 220, bottom=14 / 220)
        bars = axes.barh(list(shares), list(shares.values()), height=0.6, color=TRAIN)
        axes.bar_label(bars, [as_percent(share) for share in shares.values()], padding=6, color=INK)
        axes.set_xlim(0, max(shares.values()))
        axes.invert_yaxis()
        axes.grid(False)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        told = ", ".join(f"{phase} {as_percent(share)}" for phase, share in shares.items())
        svg = as_svg(figure, "split", f"Shares of the steps' time: {told}.")
    caption = "Shares of the steps' time. Compute includes collectives, and so the waiting for other ranks."
    return Chart("Where the time went", svg, caption)


def _small_chart(
    history: History, name: str, values: Sequence[float], level: float, label: str, summary: str
) -> str:
    x, y = _thinned(history.steps, values)
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = new_figure(width=400, height=220)
        axes = figure.subplots()
        figure.subplots_adjust(left=44 / 400, right=1 - 22 / 400, top=1 - 26 / 220, bottom=44 / 220)
        axes.axhline(level, color=QUIET, linewidth=1.5, linestyle=(0, (2, 3)))
        axes.plot(x, y, color=TRAIN, marker="o" if len(x) == 1 else None)
        axes.set_ylim(0, max([*y, level]) * 1.12 or 1)
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=_TICKS))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: as_tick(value)))
        axes.annotate(label, (1, 1.03), xycoords="axes fraction", ha="right", va="bottom", color=INK)
        _step_axis(axes, history, max_ticks=6)
        return as_svg(figure, name, summary)


def _step_axis(axes: Any, history: History, max_ticks: int) -> None:
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(max_ticks, integer=True, min_n_ticks=1, steps=_TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    first, last = history.steps[0].step, history.steps[-1].step
    margin = max(0.5, 0.01 * (last - first))
    axes.set_xlim(first - margin, last + margin)


def _resumptions(axes: Any, history: History) -> None:
    for attempt in history.attempts[1:]:
        if attempt.first_step is not None:
            axes.axvline(attempt.first_step - 0.5, color=QUIET, linewidth=1, linestyle=(0, (1, 3)))
            axes.annotate(
                f"attempt {attempt.number}",
                (attempt.first_step - 0.5, 1),
                xycoords=("data", "axes fraction"),
                xytext=(4, -2),
                textcoords="offset points",
                va="top",
                color=QUIET,
                size=11,
            )


def _labels_at_the_end(axes: Any, labels: dict[str, tuple[float, str]]) -> None:
    """Write labels right of the axes at their heights, moved apart where they would overlap."""
    axes.set_ylim(axes.get_ylim())
    low, high = axes.get_ylim()
    line = 17 / (axes.bbox.height * 72 / axes.figure.dpi) * (high - low)
    heights: list[float] = []
    for _, (value, _) in sorted(labels.items(), key=lambda item: item[1][0]):
        heights.append(max(value, heights[-1] + line) if heights else value)
    # What was pushed above the top moves down again, and takes along what is in its way.
    ceiling = high
    for index in reversed(range(len(heights))):
        heights[index] = ceiling = min(heights[index], ceiling)
        ceiling -= line
    ordered = sorted(labels.items(), key=lambda item: item[1][0])
    for height, (text, (_, color)) in zip(heights, ordered, strict=True):
        axes.annotate(
            text,
            (1.02, height),
            xycoords=("axes fraction", "data"),
            va="center",
            color=color,
            annotation_clip=False,
        )


def _thinned(steps: Sequence[TrainStep], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Steps and values, as means of neighbours where there are more than a chart can show."""
    size = -(-len(values) // _MAX_POINTS)
    groups = [slice(start, start + size) for start in range(0, len(values), size)]
    x = [_mean([float(step.step) for step in steps[group]]) for group in groups]
    return x, [_mean(values[group]) for group in groups]


def _smoothed(values: Sequence[float]) -> list[float]:
    """Centred running mean; the values themselves where they are few."""
    if len(values) < _SMOOTHED_FROM:
        return list(values)
    half = max(2, len(values) // 30)
    # At both ends the window shrinks on both sides, or the mean would lean.
    reach = [min(half, index, len(values) - 1 - index) for index in range(len(values))]
    return [_mean(values[i - r : i + r + 1]) for i, r in enumerate(reach)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
