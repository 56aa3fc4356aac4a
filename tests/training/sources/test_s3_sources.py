"""Files in S3, on a real server."""

import json
import secrets

import datasets
import pyarrow as pa
import pytest

from tests.servers.proxy import cut_proxy
from tests.training.sources.files import COMPRESS, read, source_of, values
from tests.training.sources.test_places import CONTENTS
from tests.training.sources.test_places import ROWS as TEXTS
from tests.training.sources.test_table_sources import CONTENTS as TABLES
from tests.training.sources.test_table_sources import ROWS, parquet
from training.errors import UserError


class Bucket:
    def __init__(self, server):
        self.server = server
        self.name = server.make_bucket(f"data-{secrets.token_hex(4)}")

    def put(self, **files):
        self.put_all(files)

    def put_all(self, files):
        self.server.put(
            self.name, {key: text if isinstance(text, bytes) else text.encode() for key, text in files.items()}
        )

    def address(self, key):
        return f"s3://{self.name}/{key}"


@pytest.fixture
def bucket(s3_server, monkeypatch):
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return Bucket(s3_server)


@pytest.mark.parametrize("ending", COMPRESS)
def test_all_kinds_in_all_compressions(bucket, ending):
    files = {name: (text.encode(), TEXTS) for name, text in CONTENTS.items()}
    files |= {name: (content, ROWS) for name, content in TABLES.items()}
    bucket.put_all({f"in/{name}{ending}": COMPRESS[ending](content) for name, (content, _) in files.items()})
    for name, (_, rows) in files.items():
        assert values(bucket.address(f"in/{name}{ending}")) == rows, name


def test_rows_know_their_address_and_line(bucket):
    bucket.put_all({"t.jsonl": '{"a": 1}\n[\n'})
    row, malformed = read(bucket.address("t.jsonl"))
    assert row.origin == f"s3://{bucket.name}/t.jsonl line 1"
    assert malformed.origin == f"s3://{bucket.name}/t.jsonl line 2"


def test_folders_and_globs(bucket):
    files = {
        name: f'{{"from": "{name}"}}'
        for name in ("rows/b.jsonl", "rows/a/1.jsonl", "rows/é 2.jsonl", "rowsX.jsonl")
    }
    bucket.put_all(
        {**files, "rows/README.md": "x", "rows/_SUCCESS": "", "rows/.hidden/x.csv": "x", "rows/more/": ""}
    )
    assert [row["from"] for row in values(bucket.address("rows"))] == [
        "rows/a/1.jsonl",
        "rows/b.jsonl",
        "rows/é 2.jsonl",
    ]
    assert [row["from"] for row in values(bucket.address("rows/*.jsonl"))] == ["rows/b.jsonl", "rows/é 2.jsonl"]
    assert [row["from"] for row in values(bucket.address("rows/**/1.jsonl"))] == ["rows/a/1.jsonl"]
    bucket.put_all({"rows/c.csv": "a\n1"})
    with pytest.raises(UserError, match="holds files of several kinds"):
        source_of(bucket.address("rows"))


def test_a_saved_data_set(bucket, tmp_path):
    datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)).save_to_disk(tmp_path / "saved")
    files = [path for path in (tmp_path / "saved").rglob("*") if path.is_file()]
    bucket.put_all({path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in files})
    assert values(bucket.address("saved")) == ROWS


def test_names_that_are_no_globs_and_splits(bucket):
    names = ("a[1].jsonl", "b c+d#e%20.jsonl", "rows/train.jsonl", "rows/test.jsonl")
    bucket.put_all({name: json.dumps({"from": name}) for name in names})
    for name in names[:2]:
        assert values(bucket.address(name)) == [{"from": name}]
    assert values(bucket.address("rows")) == [{"from": "rows/train.jsonl"}]
    assert values(bucket.address("rows"), train_split="test") == [{"from": "rows/test.jsonl"}]


def test_the_content_changes_with_an_object(bucket):
    bucket.put_all({"rows/a.jsonl": '{"a": 1}', "rows/b.jsonl": '{"a": 2}'})
    content = source_of(bucket.address("rows")).content
    assert source_of(bucket.address("rows")).content == content
    bucket.put_all({"rows/b.jsonl": '{"a": 3}'})
    assert source_of(bucket.address("rows")).content != content
    assert source_of(bucket.address("rows/a.jsonl")).revision.startswith("etag:")


def test_a_large_object_is_read_as_a_stream(bucket, tmp_path, monkeypatch):
    rows = [{"n": n, "text": "x" * 1000} for n in range(20_000)]
    bucket.put_all({"t.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    blocks = source_of(bucket.address("t.jsonl")).blocks()
    first = next(blocks)
    assert len(first.data) < 2**20 + 2000
    found = [row.values["n"] for block in (first, *blocks) for row in block.rows()]
    assert found == list(range(20_000))


def test_the_columns_of_a_large_table_are_fetched_once(bucket, monkeypatch):
    columns = {f"c{k}": [secrets.token_hex(100) for _ in range(12_000)] for k in range(8)}
    content = parquet(pa.table(columns).to_pylist(), row_group_size=10**6)
    bucket.put_all({"t.parquet": content})
    with cut_proxy(bucket.server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        num_blocks = sum(1 for _ in source_of(bucket.address("t.parquet")).blocks())
        assert num_blocks > 10
        assert proxy.num_bytes < 1.1 * len(content) + 2**22


# What goes wrong


def test_a_connection_that_is_cut_is_mended(bucket, monkeypatch):
    rows = [{"n": n, "text": "x" * 1000} for n in range(10_000)]
    bucket.put_all({"t.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    with cut_proxy(bucket.server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        source = source_of(bucket.address("t.jsonl"))
        proxy.cut_after, proxy.cuts = 3_000_000, 2
        assert [row["n"] for row in (r.values for b in source.blocks() for r in b.rows())] == list(range(10_000))
        assert proxy.num_cut == 2


def test_a_connection_that_is_cut_again_and_again(bucket, monkeypatch):
    bucket.put_all({"t.jsonl": '{"a": 1}\n' * 100_000})
    with cut_proxy(bucket.server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        source = source_of(bucket.address("t.jsonl"))
        proxy.cut_after, proxy.cuts = 100_000, 1000
        with pytest.raises(UserError, match=r"t\.jsonl cannot be reached .*AWS_ENDPOINT_URL"):
            list(source.blocks())


@pytest.mark.parametrize("deleted", [False, True])
def test_an_object_that_changes_between_opening_and_reading(bucket, deleted):
    bucket.put_all({"t.jsonl": '{"a": 1}\n'})
    source = source_of(bucket.address("t.jsonl"))
    bucket.put_all({"t.jsonl": '{"a": 2}\n'})
    if deleted:
        bucket.server.client().delete_object(Bucket=bucket.name, Key="t.jsonl")
    with pytest.raises(UserError, match="there is nothing at" if deleted else "has changed while it was used"):
        list(source.blocks())


def test_an_object_that_changes_while_it_is_read(bucket):
    bucket.put_all({"t.jsonl": '{"a": 1}\n' * 2_000_000})
    blocks = source_of(bucket.address("t.jsonl")).blocks()
    next(blocks)
    bucket.put_all({"t.jsonl": '{"a": 2}\n' * 2_000_000})
    with pytest.raises(UserError, match="has changed while it was used"):
        list(blocks)


@pytest.mark.parametrize("name", ["t.jsonl.gz", "t.parquet"])
def test_an_object_that_is_cut_is_told_by_its_address(bucket, name):
    whole = TABLES["t.parquet"] if name == "t.parquet" else COMPRESS[".gz"](b'{"a": 1}\n' * 100)
    bucket.put_all({name: whole[:-9]})
    with pytest.raises(UserError, match=rf"s3://{bucket.name}/{name} is broken or not whole"):
        read(bucket.address(name))


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("s3://{bucket}/none.jsonl", r"data\.train is 's3://.*/none\.jsonl', which does not exist: set it to"),
        ("s3://{bucket}/none/*.jsonl", "which does not exist"),
        ("s3://no-such-bucket-here/t.jsonl", "is in a bucket that does not exist: check its name"),
        ("s3://{bucket}/t.jsonl/", r"t\.jsonl/', which does not exist"),
        ("s3://{bucket}/t.jsonl?versionId=3", "names a version, but the newest is read"),
        ("S3://{bucket}/t.jsonl", "is an address of a kind that is not read: copy the data"),
        ("gs://{bucket}/t.jsonl", "is an address of a kind that is not read: copy the data"),
        ("s3://UPPER/t.jsonl", "with a bucket's name in small letters"),
        ("s3://", "not of the form s3://BUCKET/KEY"),
    ],
)
def test_addresses_that_lead_nowhere(bucket, address, says):
    bucket.put_all({"t.jsonl": '{"a": 1}'})
    with pytest.raises(UserError, match=says):
        source_of(address.format(bucket=bucket.name))


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "is refused .*check that the credentials"),
        ({"AWS_ACCESS_KEY_ID": "wrong"}, "is refused .*check that the credentials"),
        (
            {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None, "AWS_EC2_METADATA_DISABLED": "true"},
            "no credentials for s3://.*AWS_ACCESS_KEY_ID",
        ),
        ({"AWS_SECRET_ACCESS_KEY": None}, "no credentials for s3://"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, r"cannot be reached .*127\.0\.0\.1:1.*check the network"),
        ({"AWS_ENDPOINT_URL": "nonsense"}, "AWS_ENDPOINT_URL is 'nonsense', which is not an address"),
        ({"AWS_PROFILE": "nope"}, r"with these settings \(.*nope.*\): correct AWS_PROFILE"),
        ({"AWS_DEFAULT_REGION": "not one"}, r"with these settings \(.*not one.*\): correct .*AWS_DEFAULT_REGION"),
    ],
)
def test_credentials_and_endpoints_that_are_wrong(bucket, monkeypatch, tmp_path, environment, says):
    monkeypatch.setenv("HOME", str(tmp_path))
    bucket.put_all({"t.jsonl": '{"a": 1}'})
    for name, value in environment.items():
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=says) as error:
        source_of(bucket.address("t.jsonl"))
    assert bucket.server.secret not in str(error.value)
