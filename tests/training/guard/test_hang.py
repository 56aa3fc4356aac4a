import pytest

from training.guard.beat import BeatWriter, path_of, read_beats
from training.guard.hang import HangDetector, describe, suspect


@pytest.fixture
def ranks(tmp_path):
    return [BeatWriter(rank, str(tmp_path)) for rank in (0, 1)]


def detector(now=0.0, step_s=5.0, other_s=30.0):
    return HangDetector([0, 1], step_s, other_s, now)


def test_ranks_that_beat_are_not_silent(tmp_path, ranks):
    watch = detector()
    for now in range(0, 100, 4):
        for rank in ranks:
            rank("forward", 7)  # the same words again: the number of the beat changes
        assert watch.check(read_beats(tmp_path), now) == []


def test_the_rank_that_is_behind_comes_first(tmp_path, ranks):
    watch = detector()
    for rank in ranks:
        rank("forward", 3)
    ranks[0]("optimizer", 3)
    assert watch.check(read_beats(tmp_path), 1) == []
    silent = watch.check(read_beats(tmp_path), 6.5)
    assert [silence.rank for silence in silent] == [1, 0]
    assert describe(silent[0]) == (
        "rank 1 was silent for 6 s (in 'forward' of step 4), and resilience.hang_timeout_s is 5"
    )
    assert suspect(silent, lambda rank: False).rank == 1
    assert suspect(silent, lambda rank: rank == 0).rank == 0, "one that was stopped is the cause for certain"


@pytest.mark.parametrize("part", ["load", "first_step", "checkpoint", "evaluation", "export"])
def test_what_takes_long_may_take_long(tmp_path, ranks, part):
    watch = detector()
    for rank in ranks:
        rank(part, 0)
    watch.check(read_beats(tmp_path), 0)
    assert watch.check(read_beats(tmp_path), 29) == []
    (first, _) = watch.check(read_beats(tmp_path), 31)
    assert "resilience.stall_timeout_s is 30" in describe(first) and part in describe(first)


def test_a_rank_that_never_said_a_word_is_silent_since_it_was_started():
    silent = detector(now=100).check([], 131)
    assert [silence.rank for silence in silent] == [0, 1]
    assert "before its first word" in describe(silent[0])


def test_a_rank_that_waits_for_the_others_at_its_end_does_not_hang(tmp_path, ranks):
    watch = detector()
    ranks[0]("wait", 9)
    ranks[1]("export", 9)
    watch.check(read_beats(tmp_path), 0)
    assert [silence.rank for silence in watch.check(read_beats(tmp_path), 1000)] == [1]


def test_without_limits_nothing_hangs(tmp_path, ranks):
    watch = HangDetector([0, 1], None, None, 0)
    assert watch.check(read_beats(tmp_path), 1e9) == []
    only_stall = HangDetector([0, 1], None, 30, 0)
    ranks[0]("forward", 1)
    assert [silence.rank for silence in only_stall.check(read_beats(tmp_path), 29)] == []
    assert len(only_stall.check(read_beats(tmp_path), 60)) == 2


@pytest.mark.parametrize("torn", [b"", b"{", b'{"rank": 0, "pid": 1}', b"\0" * 128, b"[1]".ljust(127) + b"\n"])
def test_a_beat_that_is_half_written_is_left_aside_until_it_is_whole(tmp_path, ranks, torn):
    watch = detector()
    ranks[0]("forward", 1)
    ranks[1]("forward", 1)
    watch.check(read_beats(tmp_path), 0)
    path_of(tmp_path, 0).write_bytes(torn)
    assert [beat.rank for beat in read_beats(tmp_path)] == [1]
    assert watch.check(read_beats(tmp_path), 4) == []
    assert [silence.rank for silence in watch.check(read_beats(tmp_path), 6)] == [0, 1], "silent, not gone"


def test_a_rank_that_no_node_watches_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.delenv("SHARDLINE_BEATS", raising=False)
    monkeypatch.chdir(tmp_path)
    BeatWriter.of_this_rank()("forward", 1)
    assert list(tmp_path.iterdir()) == []
