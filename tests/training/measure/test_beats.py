"""What a measuring rank says while it works."""

from training.measure.rank import _Progress


def test_every_batch_has_its_beat():
    beats, lines = [], []
    progress = _Progress(lines.append, lambda part, done: beats.append((part, done)), "samples", 100)
    progress(2)
    progress.count()
    assert beats == [("evaluation", 0), ("evaluation", 2), ("evaluation", 3)]
    assert lines == [], "a short measurement has no lines"
    progress._last_s -= 60
    progress(50)
    assert lines == ["samples: 50 of 100"]
