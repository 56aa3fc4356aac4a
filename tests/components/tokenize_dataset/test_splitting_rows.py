import itertools

import pytest

from components.tokenize_dataset.split import Fate, split
from tests.components.tokenize_dataset.spooling import spool_of
from training.config import DataConfig
from training.errors import UserError

folders = itertools.count()


@pytest.fixture
def divide(tmp_path):
    """Divides sources of texts; gives, for each, the texts of every fate."""

    def run(*sources, heldout=(), **data):
        folder = tmp_path / str(next(folders))
        spool = spool_of(folder, *sources, *heldout)
        config = DataConfig(
            train=[{"source": f"s{number}.jsonl"} for number in range(len(sources))],
            heldout=[{"source": "h.jsonl"}] * len(heldout) or None,
            **data,
        )
        names = [f"s{number}" for number in range(len(sources) + len(heldout))]
        fates = split(spool, config, names, len(sources), folder)
        rows = list(zip(itertools.chain(*sources, *heldout), fates, strict=True))
        ends = itertools.accumulate(len(texts) for texts in (*sources, *heldout))
        parts, start = [], 0
        for end in ends:
            parts.append({fate: [text for text, found in rows[start:end] if found == fate] for fate in Fate})
            start = end
        return parts

    return run


def numbered(count, start=0):
    return [f"row {number}" for number in range(start, start + count)]


def test_every_row_is_on_one_side_in_its_order(divide):
    (part,) = divide(numbered(500), heldout_fraction=0.2)
    train, held = part[Fate.TRAIN], part[Fate.HELDOUT]
    assert sorted(train + held) == sorted(numbered(500))
    assert train == [text for text in numbered(500) if text in set(train)]
    assert 60 < len(held) < 140


def test_a_row_stays_on_its_side_when_rows_are_added_and_moved(divide):
    (part,) = divide(numbered(200), heldout_fraction=0.2)
    (of_more,) = divide([*numbered(100, start=1000), *reversed(numbered(200))], heldout_fraction=0.2)
    assert set(part[Fate.HELDOUT]) == {text for text in of_more[Fate.HELDOUT] if int(text.split()[1]) < 1000}


def test_a_row_stays_held_out_when_the_fraction_grows(divide):
    small, large = (
        set(divide(numbered(200), heldout_fraction=fraction)[0][Fate.HELDOUT]) for fraction in (0.1, 0.3)
    )
    assert small < large


def test_a_row_of_each_source_is_held_out_however_few_there_are(divide):
    parts = divide(numbered(5), numbered(3, start=50), ["alone"], heldout_fraction=1e-9)
    assert [len(part[Fate.HELDOUT]) for part in parts] == [1, 1, 0]
    assert [len(part[Fate.TRAIN]) for part in parts] == [4, 2, 1]
    # The same one when rows are added, unless one of them has a smaller hash.
    (more,) = divide(numbered(40), heldout_fraction=1e-9)
    assert len(more[Fate.HELDOUT]) == 1
    (again,) = divide(list(reversed(numbered(40))), heldout_fraction=1e-9)
    assert again[Fate.HELDOUT] == more[Fate.HELDOUT]


def test_equal_rows_are_dropped_and_the_first_stays(divide):
    one, other = divide(["a", "b", "a", "c"], ["c", "d", "d", "e"], heldout_fraction=1e-9)
    assert (one[Fate.DUPLICATE], other[Fate.DUPLICATE]) == (["a"], ["c", "d"])
    assert sorted(one[Fate.TRAIN] + one[Fate.HELDOUT]) == ["a", "b", "c"]
    assert sorted(other[Fate.TRAIN] + other[Fate.HELDOUT]) == ["d", "e"]


@pytest.mark.parametrize("fraction", [1e-9, 0.2])
@pytest.mark.parametrize("deduplicate", [True, False])
def test_equal_rows_are_never_on_both_sides(divide, fraction, deduplicate):
    parts = divide(numbered(60) * 2, numbered(60, start=30), heldout_fraction=fraction, deduplicate=deduplicate)
    train, held = (set().union(*(part[fate] for part in parts)) for fate in (Fate.TRAIN, Fate.HELDOUT))
    assert train | held == set(numbered(90))
    assert not train & held
    dropped = sum(len(part[Fate.DUPLICATE]) for part in parts)
    assert dropped == (90 if deduplicate else 0)


def test_rows_that_are_held_out_by_a_file_are_dropped_from_training(divide):
    train, held = divide(["a", "b", "c", "b", "d"], heldout=[["b", "d", "e", "e"]])
    assert train[Fate.TRAIN] == ["a", "c"]
    assert train[Fate.LEAKED] == ["b", "b", "d"]
    assert (held[Fate.HELDOUT], held[Fate.DUPLICATE]) == (["b", "d", "e"], ["e"])


def test_many_rows_are_gone_through_in_parts(divide, monkeypatch):
    sources = numbered(300) + numbered(50), numbered(100, start=250)
    whole = divide(*sources, heldout_fraction=0.1)
    monkeypatch.setattr("components.tokenize_dataset.dedupe._ROWS_OF_A_PART", 16)
    monkeypatch.setattr("components.tokenize_dataset.spool._ROWS_AT_ONCE", 7)
    assert divide(*sources, heldout_fraction=0.1) == whole
    assert len(whole[0][Fate.DUPLICATE]) == 50 == len(whole[1][Fate.DUPLICATE])


def test_a_single_row_cannot_be_on_both_sides(divide):
    with pytest.raises(UserError, match=r"s0: no row is held out .* only 1 rows.*or set data\.heldout"):
        divide(["a"], heldout_fraction=1e-9)
    with pytest.raises(UserError, match=r"no row is held out"):
        divide(["a", "a", "a"], heldout_fraction=1e-9)


def test_nothing_is_to_be_held_out(divide):
    with pytest.raises(UserError, match=r"data\.heldout_fraction is 0: raise it, or set data\.heldout"):
        divide(numbered(10), heldout_fraction=0)


def test_nothing_left_to_train_on(divide):
    with pytest.raises(UserError, match=r"no row of s0 .* \(of 10: 10 held out\): lower data\.heldout_fraction"):
        divide(numbered(10), heldout_fraction=1.0)
    with pytest.raises(UserError, match=r"of 10: 10 in data\.heldout too\): set data\.heldout to other rows"):
        divide(numbered(10), heldout=[numbered(10)])
    with pytest.raises(UserError, match=r"no row of s1 .* \(of 3: 3 the same as earlier ones\): leave it out"):
        divide(numbered(10), numbered(3), heldout_fraction=0.2)
    with pytest.raises(UserError, match=r"no row of s1 can be used"):
        divide(numbered(10), [], heldout_fraction=0.2)
    with pytest.raises(UserError, match=r"there are no rows that can be used"):
        divide([])
