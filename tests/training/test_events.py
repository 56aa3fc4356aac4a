import json
import math
import subprocess
import sys
import textwrap

import pytest

from training.events import (
    Evaluation,
    EventReader,
    EventWriter,
    Incident,
    Note,
    Span,
    TrainStep,
    read_events,
)


def train_step(**changes):
    fields = {
        "step": 1,
        "num_steps": 10,
        "loss": 2.5,
        "grad_norm": 0.3,
        "learning_rate": 1e-5,
        "num_tokens": 4096,
        "num_supervised": 1024,
        "seconds": 0.5,
        "memory_gib": 1.25,
    }
    return TrainStep(**{**fields, **changes})


EVERY_KIND = [
    Span(name="load", phase="start"),
    Span(name="load", phase="end", ok=False, seconds=1.5, detail="a\nb [red]c[/red]"),
    train_step(),
    Evaluation(name="tuned", loss=1.5, num_supervised=7),
    Incident(what="signal", rank=3, exit_code=137, evidence="日本\nline"),
    Note(level="error", text='\x1b[31m "quoted" \\ {} \u2028 \U0001f600'),
]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "events"


def append(folder, name, content):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.jsonl").open("ab") as file:
        file.write(content)


def line(text, time=1.0, **changes):
    return json.dumps({"kind": "note", "text": text, "time": time, **changes}).encode() + b"\n"


def texts(events):
    return [event.text for event in events]


@pytest.mark.parametrize("event", EVERY_KIND, ids=lambda event: event.kind)
def test_every_kind_comes_back_as_it_was_written(folder, event):
    writer = EventWriter(folder, "rank-0", attempt=2)
    writer.write(event)
    (read,) = read_events(folder)
    assert read == event.model_copy(update={"source": "rank-0", "attempt": 2})
    assert type(read) is type(event)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_still_an_event(folder, value):
    EventWriter(folder, "rank-0").write(train_step(loss=value, grad_norm=value))
    (read,) = read_events(folder)
    assert str(read.loss) == str(read.grad_norm) == str(value)


def test_an_event_is_a_line_of_its_own_whatever_its_text(folder):
    EventWriter(folder, "rank-0").write(Note(text="one\ntwo\r\nthree\u2028four"))
    content = (folder / "rank-0.jsonl").read_bytes()
    assert content.count(b"\n") == 1
    assert content.endswith(b"\n")


def test_an_attempt_that_the_event_names_wins_over_the_writers(folder):
    writer = EventWriter(folder, "train", attempt=1)
    writer.write(Incident(what="signal", attempt=3))
    writer.write(Note(text="x"))
    assert [event.attempt for event in read_events(folder)] == [3, 1]


def test_writing_does_not_change_the_event(folder):
    event = Note(text="x")
    EventWriter(folder, "rank-0", attempt=1).write(event)
    assert (event.source, event.attempt) == ("", 0)


def test_an_event_can_be_read_as_soon_as_it_is_written(folder):
    writer = EventWriter(folder, "rank-0")
    reader = EventReader(folder)
    for number in range(3):
        writer.write(Note(text=str(number)))
        assert texts(reader.poll()) == [str(number)]


def test_a_reader_gets_each_event_once(folder):
    reader = EventReader(folder)
    assert list(reader.poll()) == [], "the folder need not exist yet"
    append(folder, "a", line("1") + line("2"))
    assert texts(reader.poll()) == ["1", "2"]
    assert texts(reader.poll()) == []
    append(folder, "a", line("3"))
    assert texts(reader.poll()) == ["3"]


def test_events_of_several_files_come_ordered_by_time(folder):
    append(folder, "b", line("1", time=1) + line("4", time=4))
    append(folder, "a", line("2", time=2) + line("3", time=3))
    reader = EventReader(folder)
    assert texts(reader.poll()) == ["1", "2", "3", "4"]
    append(folder, "c", line("6", time=6))
    append(folder, "a", line("5", time=5))
    assert texts(reader.poll()) == ["5", "6"]


def test_events_of_one_time_and_file_keep_their_order(folder):
    append(folder, "a", b"".join(line(str(number), time=1) for number in range(20)))
    assert texts(read_events(folder)) == [str(number) for number in range(20)]


@pytest.mark.parametrize("cut", [1, 10, -1])
def test_a_line_that_is_half_written_is_waited_for(folder, cut):
    whole = line("second")
    append(folder, "a", line("first") + whole[:cut])
    reader = EventReader(folder)
    assert texts(reader.poll()) == ["first"]
    assert texts(reader.poll()) == []
    append(folder, "a", whole[cut:] + line("third"))
    assert texts(reader.poll()) == ["second", "third"]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\n",
        b"not json\n",
        b'{"kind": "note", "te\n',
        b'{"kind": "note", "te' + line("merged"),
        b"\x00\x00\x00\x00\n",
        b"\xff\xfe\x80\n",
        b"5\n",
        b"null\n",
        b"[]\n",
        b'{"kind": "note"}\n',
        b'{"kind": "note", "text": 5}\n',
        b'{"kind": "from a later version", "text": "x"}\n',
        b'{"kind": ["note"], "text": "x"}\n',
        b'{"text": "x"}\n',
        b'{"kind": "note", "text": "x", "time": "yesterday"}\n',
        b'{"kind": "train_step", "step": 1}\n',
    ],
)
def test_a_line_that_is_no_event_is_skipped_and_those_around_it_are_read(folder, garbage):
    append(folder, "a", line("before") + garbage + line("after"))
    reader = EventReader(folder)
    assert texts(reader.poll()) == ["before", "after"]
    append(folder, "a", line("later"))
    assert texts(reader.poll()) == ["later"]


def test_a_field_from_a_later_version_is_passed_over(folder):
    append(folder, "a", line("x", invented_later=1))
    assert texts(read_events(folder)) == ["x"]


def test_other_files_are_not_read(folder):
    append(folder, "a", line("x"))
    (folder / "notes.txt").write_bytes(line("y"))
    assert texts(read_events(folder)) == ["x"]


def test_a_writer_that_follows_one_that_was_killed_in_a_line_loses_nothing(folder):
    append(folder, "train", line("first") + line("half")[:15])
    reader = EventReader(folder)
    assert texts(reader.poll()) == ["first"]
    writer = EventWriter(folder, "train")
    writer.write(Note(text="second"))
    writer.write(Note(text="third"))
    assert texts(reader.poll()) == ["second", "third"]
    assert texts(read_events(folder)) == ["first", "second", "third"]


def test_a_writer_that_follows_one_that_ended_well_adds_no_empty_line(folder):
    for number in range(3):
        writer = EventWriter(folder, "train")
        writer.write(Note(text=str(number)))
        writer.close()
    assert texts(read_events(folder)) == ["0", "1", "2"]
    assert len((folder / "train.jsonl").read_bytes().splitlines()) == 3


def test_two_processes_that_write_at_once_lose_nothing(folder):
    code = """
        import sys
        from pathlib import Path
        from training.events import EventWriter, Note
        writer = EventWriter(Path(sys.argv[1]), sys.argv[2])
        for number in range(500):
            writer.write(Note(text=f"{sys.argv[2]} {number} " + "x" * (number * 40)))
    """
    writers = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(folder), name])
        for name in ("rank-0", "rank-1")
    ]
    reader, seen = EventReader(folder), []
    while any(process.poll() is None for process in writers):
        seen += reader.poll()
    seen += reader.poll()
    assert [process.returncode for process in writers] == [0, 0]
    for name in ("rank-0", "rank-1"):
        numbers = [int(event.text.split()[1]) for event in seen if event.source == name]
        assert numbers == list(range(500))
    assert len(read_events(folder)) == 1000


def test_a_step_says_where_its_time_went():
    step = TrainStep(
        step=1,
        num_steps=2,
        loss=1.0,
        grad_norm=1.0,
        learning_rate=1e-4,
        num_tokens=8,
        num_supervised=4,
        seconds=2.0,
        memory_gib=1.0,
    )
    assert step.split == {}
    timed = step.model_copy(update={"data_s": 0.25, "compute_s": 1.0, "checkpoint_s": 0.5})
    assert timed.split == {
        "data": 0.25,
        "compute": 1.0,
        "optimizer": 0.0,
        "checkpoint": 0.5,
        "evaluation": 0.0,
        "other": 0.25,
    }
    # Clocks of different ranks, each the slowest's, may add up to more than the step.
    assert timed.model_copy(update={"seconds": 1.0}).split["other"] == 0.0
