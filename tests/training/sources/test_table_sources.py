"""Parquet and Arrow."""

import datetime
import pickle

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.sources.files import COMPRESS, read, source_of, values, write
from training.errors import UserError
from training.sources.rows import Malformed

ROWS = [
    {"text": "one", "turns": [{"role": "user", "content": "a"}], "score": 1.5},
    {"text": None, "turns": None, "score": None},
    {"text": "日本 \0", "turns": [], "score": 3.0},
]


def parquet(rows, **options):
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), buffer, **options)
    return buffer.getvalue().to_pybytes()


def arrow(rows, new=pa.ipc.new_file):
    table = pa.Table.from_pylist(rows)
    buffer = pa.BufferOutputStream()
    with new(buffer, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return buffer.getvalue().to_pybytes()


CONTENTS = {
    "t.parquet": parquet(ROWS, row_group_size=2),
    "t.arrow": arrow(ROWS),
    "s.arrow": arrow(ROWS, pa.ipc.new_stream),
}


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("name", CONTENTS)
def test_tables_are_read_with_their_nulls(tmp_path, name, ending):
    path = write(tmp_path, name + ending, COMPRESS[ending](CONTENTS[name]))
    rows = read(path)
    assert [row.values for row in rows] == ROWS
    assert [row.origin for row in rows] == [f"{path} row {number}" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("name", "share"),
    # The stream's last bytes are a mark that it may go without.
    [(name, share) for name in CONTENTS for share in (0.1, 0.6, 0.95) if (name, share) != ("s.arrow", 0.95)],
)
def test_a_table_that_is_cut_is_told_by_its_name(tmp_path, name, share):
    content = CONTENTS[name][: int(len(CONTENTS[name]) * share)]
    with pytest.raises(UserError, match=rf"{name} is broken or not whole"):
        read(write(tmp_path, name, content))


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
@pytest.mark.parametrize("content", [b"", b"no table at all" * 10])
def test_what_is_no_table_is_told_by_its_name(tmp_path, name, content):
    with pytest.raises(UserError, match=rf"{name} is "):
        read(write(tmp_path, name, content))


def test_a_table_without_rows_is_refused(tmp_path):
    with pytest.raises(UserError, match="is empty: it has no rows"):
        read(write(tmp_path, "t.parquet", parquet(ROWS[:0])))


def test_an_empty_part_among_others_is_passed_over(tmp_path):
    write(tmp_path, "d/a.parquet", parquet(ROWS))
    write(tmp_path, "d/b.parquet", parquet(ROWS[:0]))
    assert values(tmp_path / "d") == ROWS


def test_a_string_that_is_not_utf8_is_named_and_the_next_is_read(tmp_path):
    texts = pa.array([b"one", b"\xff\xfe", b"three"]).view(pa.string())
    pq.write_table(pa.table({"text": texts}), tmp_path / "t.parquet")
    first, malformed, last = read(tmp_path / "t.parquet")
    assert (first.values["text"], last.values["text"]) == ("one", "three")
    assert isinstance(malformed, Malformed)
    assert malformed.origin.endswith("t.parquet row 2")


@pytest.mark.parametrize(
    ("type_", "value", "bad"),
    [
        (pa.timestamp("s"), datetime.datetime(2000, 1, 1), 2**62),
        (pa.date32(), datetime.date(2000, 1, 1), 2**30),
    ],
)
def test_a_value_that_python_has_not_is_named_and_the_next_is_read(tmp_path, type_, value, bad):
    column = pa.concat_arrays([pa.array([value], type_), pa.array([bad], type_), pa.array([value], type_)])
    content = arrow_of_one_batch(pa.table({"n": column}))
    first, malformed, last = read(write(tmp_path, "t.arrow", content))
    assert first.values == last.values == {"n": value}
    assert malformed.origin.endswith("t.arrow row 2")
    assert malformed.problem.startswith("has a value that cannot be read (")


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_columns_of_one_name_are_refused(tmp_path, name):
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    if name == "t.parquet":
        pq.write_table(table, tmp_path / name)
    else:
        write(tmp_path, name, arrow_of_one_batch(table))
    with pytest.raises(UserError, match=rf"schema of .*{name} names the column 'a' twice"):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_blocks_are_small_whatever_the_groups(tmp_path, name):
    rows = [{"text": f"{n} " * 1000} for n in range(2000)]
    content = parquet(rows) if name == "t.parquet" else arrow_of_one_batch(pa.Table.from_pylist(rows))
    blocks = [pickle.loads(pickle.dumps(block)) for block in source_of(write(tmp_path, name, content)).blocks()]
    assert len(blocks) > 5
    assert max(len(block.data) for block in blocks) < 2.5 * 2**20
    found = [row for block in blocks for row in block.rows()]
    assert [row.values for row in found] == rows
    assert [int(row.origin.split()[-1]) for row in found] == list(range(1, 2001))


def arrow_of_one_batch(table):
    buffer = pa.BufferOutputStream()
    (batch,) = table.to_batches()
    with pa.ipc.new_stream(buffer, batch.schema) as writer:
        writer.write_batch(batch)
    return buffer.getvalue().to_pybytes()


# What `datasets` saves


def test_a_saved_data_set(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved", num_shards=2)
    write(tmp_path, "saved/cache-1234.arrow", "of a map that was tried once")
    assert values(tmp_path / "saved") == ROWS


def test_a_saved_data_set_of_several_splits(tmp_path):
    whole = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict(train=whole, more=whole.select([0])).save_to_disk(tmp_path / "saved")
    assert values(tmp_path / "saved") == ROWS
    assert values(tmp_path / "saved", train_split="more") == ROWS[:1]
    with pytest.raises(UserError, match="has no split 'test': choose one of train, more"):
        read(tmp_path / "saved", train_split="test")


def test_a_saved_data_set_that_lacks_a_file(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved", num_shards=2)
    (tmp_path / "saved" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(UserError, match="names data-00001-of-00002"):
        read(tmp_path / "saved")


def test_objects_that_datasets_keeps_as_text_are_objects_again(tmp_path):
    tools = [{"name": "f", "parameters": {"x": 1}}, {"name": "g", "parameters": {"y": "z"}}]
    features = datasets.Features({"tools": datasets.List(datasets.Json())})
    datasets.Dataset.from_dict({"tools": [tools]}, features=features).save_to_disk(tmp_path / "saved")
    assert values(tmp_path / "saved") == [{"tools": tools}]
