import pytest

from components.tokenize_dataset.split import Split
from training.config import DataConfig
from training.data_source import open_heldout, open_train
from training.errors import UserError


def texts(*words):
    return [{"text": word} for word in words]


def divide(train, heldout=None, **data):
    """Texts on both sides, and the split."""
    config = DataConfig(train=str(train), heldout=None if heldout is None else str(heldout), format="text", **data)
    split = Split(config, open_train(config), open_heldout(config))
    held = [row.values["text"] for row in split.heldout_rows()]
    return [row.values["text"] for row in split.train_rows()], held, split


def numbered(count, start=0):
    return [{"text": f"row {number}"} for number in range(start, start + count)]


def test_every_row_is_on_one_side_in_its_order(write_rows):
    train, held, _ = divide(write_rows(numbered(500)), heldout_fraction=0.2)
    everything = [row["text"] for row in numbered(500)]
    assert sorted(train + held) == sorted(everything)
    assert train == [text for text in everything if text in set(train)]
    assert 60 < len(held) < 140


def test_a_row_stays_on_its_side_when_rows_are_added_and_moved(write_rows):
    _, held, _ = divide(write_rows(numbered(200)), heldout_fraction=0.2)
    more = [*numbered(100, start=1000), *reversed(numbered(200))]
    _, held_of_more, _ = divide(write_rows(more), heldout_fraction=0.2)
    assert set(held) == {text for text in held_of_more if int(text.split()[1]) < 1000}


def test_a_row_stays_held_out_when_the_fraction_grows(write_rows):
    path = write_rows(numbered(200))
    small, large = (set(divide(path, heldout_fraction=fraction)[1]) for fraction in (0.1, 0.3))
    assert small < large


def test_columns_that_are_not_used_do_not_decide(write_rows):
    _, plain, _ = divide(write_rows(numbered(100)), heldout_fraction=0.2)
    tagged = [{"id": number, **row} for number, row in enumerate(numbered(100))]
    _, held, _ = divide(write_rows(tagged), heldout_fraction=0.2)
    assert held == plain


def test_equal_rows_are_on_the_same_side(write_rows):
    train, held, split = divide(write_rows(numbered(100) * 3), heldout_fraction=0.2)
    assert not set(train) & set(held)
    assert split.num_leaked_dropped == 0


def test_rows_of_the_heldout_file_are_dropped_from_training(write_rows):
    heldout = write_rows(texts("b", "d", "e"), "heldout.jsonl")
    train, held, split = divide(write_rows(texts("a", "b", "c", "b", "d")), heldout)
    assert (train, held) == (["a", "c"], ["b", "d", "e"])
    assert split.num_leaked_dropped == 3


def test_the_first_rows_are_taken(write_rows):
    path = write_rows(numbered(100))
    whole, held, _ = divide(path, heldout_fraction=0.2)
    some, held_of_some, _ = divide(path, heldout_fraction=0.2, max_train_rows=7)
    assert some == whole[:7]
    assert held_of_some == held
    assert divide(path, heldout_fraction=0.2, max_train_rows=1000)[0] == whole


def test_too_few_rows_to_hold_any_out(write_rows):
    with pytest.raises(UserError, match=r"heldout_fraction 1e-06 of the 10 rows of .* holds out none: raise it"):
        divide(write_rows(numbered(10)), heldout_fraction=1e-6)


def test_nothing_left_to_train_on(write_rows):
    with pytest.raises(UserError, match=r"lower data\.heldout_fraction"):
        divide(write_rows(numbered(10)), heldout_fraction=1.0)
    with pytest.raises(UserError, match=r"set data\.heldout to other rows"):
        divide(write_rows(numbered(10)), write_rows(numbered(10), "heldout.jsonl"))


def test_an_empty_heldout_file(write_rows):
    with pytest.raises(UserError, match=r"heldout\.jsonl is empty"):
        divide(write_rows(numbered(10)), write_rows([], "heldout.jsonl"))
