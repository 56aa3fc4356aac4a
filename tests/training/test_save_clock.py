"""Checkpoints by time: counted from the last one, whatever the steps took."""

from training.save_clock import SaveClock


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_save_is_due_so_many_seconds_after_the_last():
    clock = Clock()
    saves = SaveClock(10.0, clock)
    due = []
    for second in range(101, 131):
        clock.now = float(second)
        if saves.is_due():
            due.append(second)
            saves.restart()
    assert due == [110, 120, 130]


def test_a_save_for_another_reason_counts_too():
    clock = Clock()
    saves = SaveClock(10.0, clock)
    clock.now += 9
    saves.restart()
    clock.now += 9
    assert not saves.is_due()
    clock.now += 1
    assert saves.is_due()


def test_without_a_time_none_is_ever_due():
    clock = Clock()
    saves = SaveClock(None, clock)
    clock.now += 1e9
    assert not saves.is_due()


def test_the_time_of_day_does_not_matter(monkeypatch):
    import time

    saves = SaveClock(3600.0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert not saves.is_due()
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert not saves.is_due()
