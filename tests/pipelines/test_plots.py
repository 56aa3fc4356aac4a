"""The notebooks' figures, read through matplotlib: what is drawn, and what is written on it."""

import io
import math

import pytest

from pipelines.jobs.model import AttemptView, RunView
from pipelines.plots import comparison_figure, progress_figure, training_figure
from training.events import Evaluation, TrainStep
from training.history import Attempt, History


def step(number, loss, seconds=0.5):
    return TrainStep(
        step=number,
        num_steps=100,
        loss=loss,
        grad_norm=1,
        learning_rate=1e-4,
        num_tokens=1000,
        num_supervised=400,
        seconds=seconds,
        memory_gib=1,
    )


def history(losses, heldout=None):
    steps = tuple(step(number, loss) for number, loss in enumerate(losses, 1))
    taken = (heldout or {}).items()
    measured = {at: Evaluation(name="step", step=at, loss=loss, num_supervised=9) for at, loss in taken}
    return History(steps, (Attempt(1, 1, len(losses), ()),), 0, measured)


def view(step=None, stage="train", phase="running", **changes):
    known = {} if step is None else {"num_steps": 100, "loss": 3 - step / 50, "tokens_per_s": 2000.0}
    attempt = AttemptView(1, phase, step=step, seconds_left=None if step is None else 90.0, **known)
    return RunView("tiny", "namespace demo", (attempt,), stage=stage, **changes)


def drawn(axes):
    return {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in axes.lines}


def words(figure):
    """All text; drawing it shows that it can be."""
    figure.savefig(io.BytesIO(), format="png")
    found = [figure.get_suptitle()]
    for axes in figure.axes:
        legend = axes.get_legend()
        found += [axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)]
        found += [text.get_text() for text in legend.get_texts()] if legend else []
    return found


def test_a_training_is_drawn_with_its_levels_and_its_throughput():
    figure = training_figure(history([3.0, 2.0, 1.5], heldout={2: 2.2}), base_loss=3.2, tuned_loss=1.8)
    loss, speed = figure.axes
    lines = drawn(loss)
    assert lines["training"] == [(1, 3.0), (2, 2.0), (3, 1.5)] and lines["held-out"] == [(2, 2.2)]
    assert {y for _, y in lines["held-out, base model: 3.200"]} == {3.2}
    assert [y for _, y in next(iter(drawn(speed).values()))] == [2000] * 3
    assert speed.get_ylim()[0] == 0, "so that a drop does not look like a standstill"
    text = words(figure)
    assert "tokens/s of all ranks, median 2,000" in text and "held-out, tuned model: 1.800" in text
    assert "held-out, base model: 3.200" not in words(training_figure(history([3.0, 2.0])))


def test_many_steps_get_a_running_mean_that_keeps_the_first_and_steadies_the_last():
    losses = [2 + (number % 2) for number in range(60)]
    raw, smooth = training_figure(history(losses)).axes[0].lines
    assert list(raw.get_ydata()) == losses
    assert smooth.get_ydata()[0] == losses[0]
    assert all(abs(value - 2.5) < 0.2 for value in smooth.get_ydata()[2:])


def test_a_run_that_goes_on_shows_how_far_it_is_and_a_repeated_step_once():
    figure = progress_figure([view(), view(10), view(30), view(20), view(30)])
    loss, speed = figure.axes
    assert drawn(loss)["training"] == [(10, 2.8), (20, 2.6), (30, 2.4)]
    assert loss.get_xlim()[1] > 100, "what is left is seen"
    assert words(figure)[0] == "tiny  ·  attempt 1 running  ·  step 30/100  ·  1 min 30 s left"
    assert [y for _, y in next(iter(drawn(speed).values()))] == [2000] * 3


@pytest.mark.parametrize(
    ("views", "headline"),
    [
        ([], "waiting for the run"),
        ([RunView("tiny", "", (), stage="tokenize_dataset")], "tiny  ·  at the step tokenize_dataset"),
        ([view(phase="queued")], "tiny  ·  attempt 1 queued"),
        ([view(phase="failed", stage="", ended=True, succeeded=False)], "tiny  ·  did not succeed"),
    ],
)
def test_before_the_first_step_it_says_what_goes_on(views, headline):
    text = words(progress_figure(views))
    assert text[0] == headline and text.count("no step yet") == 2


def test_after_the_training_the_curve_stays():
    ended = view(100, stage="", phase="succeeded", ended=True, succeeded=True)
    assert words(progress_figure([view(50), ended]))[0] == "tiny  ·  succeeded  ·  step 100/100"
    evaluated = view(100, stage="evaluate", phase="succeeded")
    assert words(progress_figure([evaluated]))[0] == "tiny  ·  at the step evaluate  ·  step 100/100"


def test_several_runs_are_told_apart_also_when_they_are_many():
    curves = {f"run-{number}": [(1.0, 3.0 + number), (2.0, 2.0)] for number in range(20)}
    figure = comparison_figure(curves, "training loss")
    (axes,) = figure.axes
    looks = {(line.get_color(), str(line.get_linestyle()), line._unscaled_dash_pattern) for line in axes.lines}
    assert len(looks) == 20
    assert [text for text in words(figure) if text.startswith("run-")] == list(curves)
    assert drawn(axes)["run-3"] == [(1, 6.0), (2, 2.0)]


def test_a_loss_that_is_no_number_leaves_a_gap():
    figure = training_figure(history([3.0, math.nan, math.inf, 2.0]))
    words(figure)
    low, high = figure.axes[0].get_ylim()
    assert low < 2 and 3 < high < 10
