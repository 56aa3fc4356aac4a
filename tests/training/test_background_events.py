"""Events that are written while the training goes on, through disks that are slow, full or hung."""

import threading
import time

import pytest

from training import background_events
from training.background_events import BackgroundEventWriter
from training.events import EventReader, EventWriter, Note, Span, read_events


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(background_events, "_RETRY_S", 0.02)


@pytest.fixture
def disk(monkeypatch):
    """A disk that answers to nothing until this is set."""
    answers = threading.Event()

    def open_file(*arguments):
        answers.wait()
        return EventWriter(*arguments)

    monkeypatch.setattr(background_events, "EventWriter", open_file)
    return answers


def texts(events):
    return [event.text for event in events]


def test_a_writer_that_is_closed_leaves_no_thread(tmp_path):
    before = set(threading.enumerate())
    writer = BackgroundEventWriter(tmp_path, "node-0", attempt=2)
    (mine,) = set(threading.enumerate()) - before
    writer.write(Note(text="the last"))
    assert writer.close(10)
    mine.join(10)
    assert not mine.is_alive() and texts(read_events(tmp_path)) == ["the last"]


def test_events_come_in_order_and_stamped(tmp_path):
    writer = BackgroundEventWriter(tmp_path, "rank-0", attempt=3)
    for number in range(500):
        writer.write(Note(text=str(number)))
    assert writer.flush(10)
    events = read_events(tmp_path)
    assert texts(events) == [str(number) for number in range(500)]
    assert {(event.source, event.attempt) for event in events} == {("rank-0", 3)}


def test_an_event_has_the_time_at_which_it_was_given(tmp_path):
    writer = BackgroundEventWriter(tmp_path, "rank-0")
    event = Span(name="load", phase="start")
    time.sleep(0.05)
    writer.write(event)
    assert writer.flush(10)
    assert read_events(tmp_path)[0].time == event.time


def test_the_file_is_there_before_the_first_event(tmp_path):
    assert BackgroundEventWriter(tmp_path, "rank-0").flush(10)
    assert (tmp_path / "rank-0.jsonl").read_bytes() == b""


def test_several_threads_lose_nothing(tmp_path):
    writer = BackgroundEventWriter(tmp_path, "rank-0")

    def write(name):
        for number in range(100):
            writer.write(Note(text=f"{name} {number}"))

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.flush(10)
    seen = texts(EventReader(tmp_path).poll())
    for name in "ab":
        assert [text for text in seen if text[0] == name] == [f"{name} {number}" for number in range(100)]


def test_a_disk_that_hangs_holds_nobody_up(tmp_path, disk):
    writer = BackgroundEventWriter(tmp_path, "rank-0")
    started = time.monotonic()
    for number in range(100):
        writer.write(Note(text=str(number)))
    assert time.monotonic() - started < 0.5
    assert not writer.flush(0.05)
    disk.set()
    assert writer.flush(10)
    assert texts(read_events(tmp_path)) == [str(number) for number in range(100)]


def test_what_does_not_fit_the_queue_is_left_out_and_counted(tmp_path, disk):
    writer = BackgroundEventWriter(tmp_path, "rank-0", most_waiting=3)
    for number in range(10):
        writer.write(Note(text=str(number)))
    assert not writer.flush(0.05)
    disk.set()
    assert writer.flush(10)
    told = sorted(texts(read_events(tmp_path)))
    assert told[:3] == ["0", "1", "2"]
    assert told[3].startswith("7 events of about this time are missing") and len(told) == 4


def test_what_a_disk_refuses_is_written_once_it_takes_it(tmp_path, capfd):
    (tmp_path / "run").write_text("in the way of the folder")
    folder = tmp_path / "run" / "events"
    writer = BackgroundEventWriter(folder, "rank-0")
    for text in ("first", "second"):
        writer.write(Note(text=text))
    assert not writer.flush(0.1)
    (tmp_path / "run").unlink()
    assert writer.flush(10)
    assert texts(read_events(folder)) == ["first", "second"]
    assert capfd.readouterr().err.count("events cannot be written") == 1


def test_a_line_that_a_full_disk_cut_is_written_again_whole(tmp_path, monkeypatch):
    writer = BackgroundEventWriter(tmp_path, "rank-0")
    assert writer.flush(10)
    true_write = EventWriter.write
    cut = [True]

    def write(self, event):
        if cut.pop() if cut else False:
            self._file.write(b'{"kind": "note", "te')
            raise OSError(28, "No space left on device")
        true_write(self, event)

    monkeypatch.setattr(EventWriter, "write", write)
    writer.write(Note(text="whole"))
    assert writer.flush(10)
    assert texts(read_events(tmp_path)) == ["whole"]
    assert len((tmp_path / "rank-0.jsonl").read_bytes().splitlines()) == 2
