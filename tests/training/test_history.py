"""What the events tell of the training."""

import math

from training.events import Evaluation, EventWriter, Incident, Span, TrainStep
from training.history import read_history


def train_step(step, loss, time, seconds=1.0):
    return TrainStep(
        time=time,
        step=step,
        num_steps=4,
        loss=loss,
        grad_norm=1.0,
        learning_rate=1e-4,
        num_tokens=100 * step,
        num_supervised=50,
        seconds=seconds,
        memory_gib=2.0 + step,
    )


def test_later_attempt_counts(tmp_path):
    first = EventWriter(tmp_path, "rank-0", attempt=1)
    for step in (1, 2, 3):
        first.write(train_step(step, loss=step, time=1000.0 + step))
    EventWriter(tmp_path, "launcher").write(Incident(attempt=1, what="signal", rank=1))
    EventWriter(tmp_path, "launcher").write(Span(name="train", phase="start"))
    # The clock of the second attempt's node is behind.
    second = EventWriter(tmp_path, "rank-0-again", attempt=2)
    for step in (3, 4):
        second.write(train_step(step, loss=10 * step, time=500.0 + step))

    history = read_history(tmp_path)
    assert [step.loss for step in history.steps] == [1, 2, 30, 40]
    assert history.num_repeated == 1
    assert [(a.number, a.first_step, a.last_step) for a in history.attempts] == [(1, 1, 3), (2, 3, 4)]
    assert [incident.what for incident in history.attempts[0].incidents] == ["signal"]
    assert history.tokens_per_s == 250
    assert history.peak_memory_gib == 6
    assert history.num_tokens == 1000
    assert history.seconds == 4


def test_a_step_that_was_left_out_is_none(tmp_path):
    writer = EventWriter(tmp_path, "rank-0", attempt=2)
    for step in (1, 2, 3):
        event = train_step(step, loss=math.nan if step == 2 else 1.0, time=1000.0 + step)
        writer.write(event.model_copy(update={"skipped": step == 2}))
    history = read_history(tmp_path)
    assert [step.step for step in history.steps] == [1, 3] and history.num_repeated == 0


def test_held_out_losses_of_the_training(tmp_path):
    first = EventWriter(tmp_path, "rank-0", attempt=1)
    for step in (2, 4):
        first.write(Evaluation(time=1000.0 + step, name="step", step=step, loss=step, num_supervised=9))
    EventWriter(tmp_path, "evaluate").write(Evaluation(name="base", loss=99.0, num_supervised=9))
    # The clock of the second attempt's node is behind.
    second = EventWriter(tmp_path, "rank-0-again", attempt=2)
    for step in (4, 6):
        second.write(Evaluation(time=500.0 + step, name="step", step=step, loss=10 * step, num_supervised=9))
    losses = {step: evaluation.loss for step, evaluation in read_history(tmp_path).heldout.items()}
    assert losses == {2: 2, 4: 40, 6: 60}
    assert list(losses) == [2, 4, 6]


def test_speed_where_it_was_measured(tmp_path):
    writer = EventWriter(tmp_path, "rank-0", attempt=1)
    writer.write(train_step(1, loss=1.0, time=1.0))
    before = read_history(tmp_path)
    assert (before.fill, before.tflops_per_device, before.mfu, before.split) == (None, None, None, {})
    for step in (2, 3, 4):
        measured = {
            "num_positions": 1000,
            "num_devices": 2,
            "data_s": 0.25,
            "compute_s": 0.5,
            "flops": step * 1e12,
            "peak_tflops": 10,
        }
        writer.write(train_step(step, loss=1.0, time=step).model_copy(update=measured))
    history = read_history(tmp_path)
    assert history.tokens_per_s_per_device == (100 + 150) / 2
    assert history.supervised_tokens_per_s == 50
    assert history.fill == (200 + 300 + 400) / 3000
    assert history.tflops_per_device == 1.5
    assert history.mfu == 0.15
    assert history.split == {
        "data": 0.75,
        "compute": 1.5,
        "optimizer": 0,
        "checkpoint": 0,
        "evaluation": 0,
        "other": 0.75,
    }


def test_no_events(tmp_path):
    history = read_history(tmp_path / "events")
    assert history.steps == history.attempts == ()
    assert history.tokens_per_s is history.peak_memory_gib is history.ended is history.fill is history.mfu is None
    assert history.split == history.heldout == {}
