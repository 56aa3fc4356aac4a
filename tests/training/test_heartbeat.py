import os
import threading
import time

import pytest

from training import heartbeat
from training.heartbeat import Heartbeat, Watch, call_when_silent


class Clock:
    """A clock that a test moves by hand."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def time(self):
        return 0.0

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(heartbeat, "time", clock)
    return clock


@pytest.fixture
def path(tmp_path):
    return tmp_path / "heartbeats" / "launcher"


def wait_for(predicate, seconds=5):
    end = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)


def beats(path):
    content = path.read_text() if path.exists() else ""
    return int(content.split()[1]) if content else 0


# Writing


def test_the_file_changes_until_the_heartbeat_is_stopped_and_stays(path):
    with Heartbeat(path, every_s=0.01):
        wait_for(lambda: beats(path) >= 3)
    last = path.read_text()
    time.sleep(0.05)
    assert path.read_text() == last


def test_the_first_beat_does_not_wait_for_the_interval(path):
    with Heartbeat(path, every_s=60):
        wait_for(lambda: beats(path) == 1)


def test_stopping_does_not_wait_for_the_interval(path):
    began = time.monotonic()
    with Heartbeat(path, every_s=60):
        pass
    assert time.monotonic() - began < 1


def test_a_disk_that_is_full_for_a_while_does_not_end_the_heartbeat(path, monkeypatch):
    full = threading.Event()
    refused = []
    write = type(path).write_text

    def write_or_refuse(self, *args, **kwargs):
        if full.is_set():
            refused.append(self)
            raise OSError(28, "No space left on device")
        return write(self, *args, **kwargs)

    monkeypatch.setattr(type(path), "write_text", write_or_refuse)
    with Heartbeat(path, every_s=0.01):
        wait_for(lambda: beats(path) >= 1)
        full.set()
        wait_for(lambda: len(refused) >= 2)
        seen = beats(path)
        full.clear()
        wait_for(lambda: beats(path) > seen)


# Watching


def test_silence_is_counted_from_the_last_change_by_the_watchers_clock(path, clock):
    path.parent.mkdir()
    path.write_text("1")
    # A machine whose clock is years behind wrote it.
    os.utime(path, (0, 0))
    watch = Watch(path)
    assert watch.silent_s() == 0
    clock.now += 7
    assert watch.silent_s() == 7
    path.write_text("2")
    os.utime(path, (0, 0))
    assert watch.silent_s() == 0
    clock.now += 3
    assert watch.silent_s() == 3


def test_a_file_that_was_never_there_is_silent_from_the_beginning(path, clock):
    watch = Watch(path)
    clock.now += 5
    assert watch.silent_s() == 5


def test_a_file_that_goes_away_is_as_silent_as_one_that_does_not_change(path, clock):
    path.parent.mkdir()
    path.write_text("1")
    watch = Watch(path)
    watch.silent_s()
    clock.now += 4
    path.unlink()
    assert watch.silent_s() == 4
    path.write_text("2")
    assert watch.silent_s() == 0


def test_a_heartbeat_that_goes_on_is_never_called_silent(path):
    lost = threading.Event()
    with Heartbeat(path, every_s=0.02):
        wait_for(lambda: beats(path) >= 1)
        call_when_silent(path, 1.0, lost.set)
        assert not lost.wait(1.5)


def test_a_heartbeat_that_stops_is_called_silent_once(path):
    calls = []
    with Heartbeat(path, every_s=0.02):
        wait_for(lambda: beats(path) >= 1)
        call_when_silent(path, 0.3, lambda: calls.append(time.monotonic()))
        stopped = time.monotonic()
    wait_for(lambda: calls)
    assert calls[0] - stopped >= 0.2
    time.sleep(0.5)
    assert len(calls) == 1


def test_a_heartbeat_that_never_comes_is_called_silent(path):
    lost = threading.Event()
    call_when_silent(path, 0.1, lost.set)
    assert lost.wait(5)
