import pytest

from components.evaluate.formats import (
    as_change,
    as_duration,
    as_percent,
    as_perplexity,
    as_rate,
    as_tick,
)
from components.evaluate.history import read_history
from training.events import EventWriter, Incident, Span, TrainStep


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


def test_no_events(tmp_path):
    history = read_history(tmp_path / "events")
    assert history.steps == history.attempts == ()
    assert history.tokens_per_s is history.peak_memory_gib is history.ended is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (as_perplexity(9.123), "9.12"),
        (as_perplexity(24.78), "24.8"),
        (as_perplexity(1240.4), "1,240"),
        (as_perplexity(3.2e8), "3.2e+08"),
        (as_change(-1.0034), "−1.003"),
        (as_change(0.5), "+0.500"),
        (as_change(-0.0001), "0.000"),
        (as_percent(0.0402), "4.0\N{NO-BREAK SPACE}%"),
        (as_percent(0.314), "31\N{NO-BREAK SPACE}%"),
        (as_percent(0.00021), "0.021\N{NO-BREAK SPACE}%"),
        (as_percent(0), "0\N{NO-BREAK SPACE}%"),
        (as_duration(3.21), "3.2 s"),
        (as_duration(192), "3 min 12 s"),
        (as_duration(7500), "2 h 5 min"),
        (as_rate(2e-5), "2e-5"),
        (as_rate(1.9e-4), "1.9e-4"),
        (as_rate(0), "0"),
        (as_tick(200_000), "200k"),
        (as_tick(0.5), "0.5"),
    ],
)
def test_figures_for_people(text, expected):
    assert text == expected
