"""Every second of a run's life lies in one bucket, whatever its events are."""

import itertools
import json
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.ledger.lives import START, new_folder, train_step
from training.events import Evaluation, EventReader, EventWriter, Incident, RanksEnded, Span
from training.ledger import BUCKETS, Account, Ledger

TIMES = st.floats(0, 200) | st.sampled_from([-5e8, 3.6e3, 1e8, 1e300, float("nan"), float("inf")])
DATES = TIMES.map(lambda time: START + time)
LENGTHS = st.floats(0, 20) | st.sampled_from([-1.0, 1e9, float("nan"), float("inf")])
SOURCES = st.sampled_from(["rank-0", "rank-1", "node-0", "node-1", "train", "evaluation-rank-0"])
NAMES = st.sampled_from(
    ["load", "restore", "checks", "rendezvous", "checkpoint", "checkpoint_write", "export", "train"]
)
CLASSES = st.sampled_from(["hang", "signal", "node_lost", "preempted", "interrupted", "oom", "nonfinite"])

EVENTS = st.one_of(
    st.builds(
        lambda step, seconds, data_s, checkpoint_s, evaluation_s: train_step(
            step, 12, seconds, data_s=data_s, checkpoint_s=checkpoint_s, evaluation_s=evaluation_s
        ),
        st.integers(1, 12),
        LENGTHS,
        LENGTHS,
        LENGTHS,
        LENGTHS,
    ),
    st.builds(Span, name=NAMES, phase=st.sampled_from(["start", "end"]), ok=st.booleans()),
    st.builds(lambda step: Evaluation(name="step", step=step, loss=1.0, num_supervised=1), st.integers(1, 12)),
    st.builds(lambda what: RanksEnded(node=0, host="h", what=what), CLASSES),
    st.builds(lambda what, attempt: Incident(what=what, attempt=attempt), CLASSES, st.integers(1, 4)),
)
LINES = st.lists(st.tuples(SOURCES, st.integers(0, 4), TIMES, EVENTS), max_size=40)
RECORDS = st.dictionaries(
    st.integers(1, 4),
    st.fixed_dictionaries(
        {},
        optional={
            "started": DATES,
            "phases": st.dictionaries(st.sampled_from(["queued", "starting"]), DATES),
            "ended": DATES,
            "outcome": st.sampled_from(["succeeded", "signal", "interrupted", "lost"]),
        },
    ),
    max_size=4,
)


def write_life(folder, lines, records):
    for source, attempt, time, event in lines:
        writer = EventWriter(folder.events, source)
        writer.write(event.model_copy(update={"time": START + time, "attempt": event.attempt or attempt}))
        writer.close()
    for number, record in records.items():
        place = folder.attempt(number)
        place.mkdir(parents=True)
        text = json.dumps(record)
        (place / "attempt.json").write_text(text if number < 4 else text[: len(text) // 2])


def check(totals, intervals):
    assert totals is not None
    assert (intervals[0].start, intervals[-1].end) == (totals.start, totals.end) if intervals else True
    for before, after in itertools.pairwise(intervals):
        assert before.end == after.start, "a gap or an overlap"
        assert before.attempt <= after.attempt
    assert all(interval.start < interval.end and interval.bucket in BUCKETS for interval in intervals)
    sums = Counter()
    for interval in intervals:
        sums[interval.bucket] += interval.length
    assert dict(totals.microseconds) == dict(sums), "the quick way and the whole one differ"
    assert sum(totals.microseconds.values()) == totals.end - totals.start
    assert 0 <= totals.goodput <= 1


@settings(max_examples=60, deadline=None)
@given(LINES, RECORDS, st.sampled_from([None, START, START + 150.0, START + 1e6]))
def test_the_buckets_add_up_to_the_wall_time_exactly(lines, records, now):
    with tempfile.TemporaryDirectory() as root:
        folder = new_folder(Path(root))
        write_life(folder, lines, records)
        ledger = Ledger.of(folder, now)
        if ledger.totals is None:
            assert ledger.intervals == ()
            return
        check(ledger.totals, ledger.intervals)
        assert ledger.goodput == ledger.totals.goodput
        assert abs(sum(ledger.seconds.values()) - ledger.totals.wall_s) < 1e-3 + 1e-12 * ledger.totals.wall_s


@settings(max_examples=20, deadline=None)
@given(LINES, RECORDS, st.integers(1, 7))
def test_they_do_while_the_events_come(lines, records, size):
    with tempfile.TemporaryDirectory() as root:
        folder = new_folder(Path(root))
        account, reader = Account(folder), EventReader(folder.events)
        for begin in range(0, len(lines), size):
            write_life(folder, lines[begin : begin + size], records if begin == 0 else {})
            account.take(reader.poll(), START + 300)
            for now in (None, START + 300):
                if (totals := account.totals(now)) is not None:
                    check(totals, list(account.intervals(now)))
