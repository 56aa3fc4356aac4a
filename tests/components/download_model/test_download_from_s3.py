"""Models in S3, on a real server."""

import secrets
from types import SimpleNamespace

import pytest

from components.download_model import volume
from components.download_model.download import download
from components.download_model.resume import resume_from_s3
from tests.components.download_model.test_download_model import (  # noqa: F401
    WRITTEN_BY_DOWNLOAD,
    files_of,
    saved_model,
    step_for,
)
from tests.doubles.models import save_tiny_model, tiny_tokenizer
from tests.servers.proxy import cut_proxy
from training.config import ModelConfig
from training.errors import UserError
from training.model_source import S3Folder, classify, load_tokenizer, model_key, pin, tokenizer_key
from training.s3 import S3Object, list_objects
from training.store import MANIFEST, about, verify


class Bucket:
    def __init__(self, server):
        self.server = server
        self.name = server.make_bucket(f"models-{secrets.token_hex(4)}")

    def put(self, folder, files):
        self.server.put(self.name, {f"{folder}/{name}": content for name, content in files.items()})

    def delete(self, key):
        self.server.client().delete_object(Bucket=self.name, Key=key)


@pytest.fixture(scope="module")
def bucket_of_module(s3_server):
    return Bucket(s3_server)


@pytest.fixture
def bucket(bucket_of_module, monkeypatch, tmp_path):
    for name, value in bucket_of_module.server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return bucket_of_module


@pytest.fixture
def address(bucket, saved_model):  # noqa: F811
    """A model in the bucket, with much beside it that is not taken."""
    folder = f"m-{secrets.token_hex(4)}"
    extra = {
        "pytorch_model.bin": b"x",
        "optimizer.pt": b"x",
        "modeling_own.py": b"raise SystemExit('was run')",
        "consolidated.safetensors": b"x",
        "onnx/model.safetensors": b"x",
        "README.md": b"---\nlicense: mit\n---\n# A model\n",
    }
    bucket.put(folder, files_of(saved_model) | extra)
    return f"s3://{bucket.name}/{folder}"


def key(address, name):
    return f"{folder_of(address)}/{name}"


def folder_of(address):
    return address.rpartition("/")[2]


def test_a_folder_is_published_without_what_is_not_taken(address, saved_model, tmp_path):  # noqa: F811
    step = step_for(tmp_path / "store", f"{address}/")
    folder = download(step)
    assert {path.name for path in folder.iterdir()} == {*WRITTEN_BY_DOWNLOAD, MANIFEST}
    assert verify(folder) == []
    assert (folder / "model.safetensors").read_bytes() == (saved_model / "model.safetensors").read_bytes()
    facts = about(folder)
    assert (facts["kind"], facts["license"], facts["source"]) == ("s3", "mit", f"{address}/")
    assert facts["revision"] == pin(ModelConfig(name=address))
    assert step.notes[0] == "downloading 0.00 GB of weights"
    assert not (step.folder.path / "download").exists()


def test_a_model_in_shards(bucket, tmp_path):
    source = save_tiny_model(tmp_path / "sharded", max_shard_size="3KB")
    files = files_of(source)
    bucket.put("sharded", files)
    folder = download(step_for(tmp_path / "store", f"s3://{bucket.name}/sharded"))
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    assert verify(folder) == []

    shard = next(name for name in files if name.startswith("model-"))
    bucket.delete(f"sharded/{shard}")
    with pytest.raises(UserError, match=rf"is not whole: model\.safetensors\.index\.json names {shard}"):
        download(step_for(tmp_path / "store", f"s3://{bucket.name}/sharded", "again"))


def test_for_new_weights_none_are_taken(address, bucket, tmp_path):
    bucket.delete(key(address, "model.safetensors"))
    folder = download(step_for(tmp_path / "store", address, init="random"))
    assert {path.name for path in folder.iterdir()} == {*WRITTEN_BY_DOWNLOAD, MANIFEST} - {"model.safetensors"}


def test_a_model_in_the_store_is_not_fetched_again(address, bucket, tmp_path, monkeypatch):
    revision = pin(ModelConfig(name=address))
    folder = download(step_for(tmp_path / "store", address, "first"))
    monkeypatch.setattr("components.download_model.download._fill", None)
    assert download(step_for(tmp_path / "store", address, "second")) == folder
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert download(step_for(tmp_path / "store", address, "third", revision=revision)) == folder


def test_the_revision_changes_with_what_is_taken_and_with_nothing_else(address, bucket):
    model = ModelConfig(name=address)
    revision, tokenizer = pin(model), tokenizer_key(model)
    bucket.put(folder_of(address), {"README.md": b"other", "pytorch_model.bin": b"other"})
    assert pin(model) == revision
    bucket.put(folder_of(address), {"generation_config.json": b'{"a": 1}'})
    assert pin(model) != revision
    assert tokenizer_key(model) == tokenizer
    bucket.put(folder_of(address), {"chat_template.jinja": b"{{ messages }}"})
    assert tokenizer_key(model) != tokenizer
    assert model_key(model) != model_key(ModelConfig(name=address, revision=revision))


def test_the_tokenizer_comes_without_the_weights(address, saved_model, tmp_path):  # noqa: F811
    model = ModelConfig(name=address)
    tokenizer = load_tokenizer(model)
    assert tokenizer.encode("c a b", add_special_tokens=False) == tiny_tokenizer().encode("c a b")
    assert tokenizer_key(model) == tokenizer_key(ModelConfig(name=str(saved_model)))
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


@pytest.mark.parametrize("when", ["pinned", "small files there"])
def test_a_model_that_is_replaced_during_the_run_is_told(address, bucket, tmp_path, monkeypatch, when):
    model = ModelConfig(name=address, revision=pin(ModelConfig(name=address)))

    def replace(*arguments):
        bucket.put(folder_of(address), {"model.safetensors": b"other"})

    if when == "pinned":
        replace()
        with pytest.raises(UserError, match="has changed while it was used"):
            load_tokenizer(model)
    monkeypatch.setattr("components.download_model.fetch.check_room", replace)
    with pytest.raises(UserError, match="has changed while it was used"):
        download(step_for(tmp_path / "store", address, revision=model.revision))


# Downloads that are interrupted


@pytest.fixture
def large(bucket):
    """An object of 30 MB."""
    content = secrets.token_bytes(1000) * 30_000
    bucket.put("large", {"file": content})
    (found,) = list_objects(f"s3://{bucket.name}/large/file")
    return found, content


def test_what_is_there_is_not_fetched_again(bucket, large, tmp_path, monkeypatch):
    found, content = large
    (tmp_path / "file.part").write_bytes(content[:20_000_000])
    with cut_proxy(bucket.server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        resume_from_s3(found, tmp_path / "file")
        assert 10_000_000 < proxy.num_bytes < 10_100_000
        assert (tmp_path / "file").read_bytes() == content
        resume_from_s3(found, tmp_path / "file")
        assert proxy.num_bytes < 10_100_000
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["file"]


@pytest.mark.parametrize("surplus", [0, 1])
def test_a_part_that_is_whole_or_too_long(bucket, large, tmp_path, surplus):
    found, content = large
    (tmp_path / "file.part").write_bytes(content + b"x" * surplus)
    resume_from_s3(found, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == content


def test_a_download_whose_connection_is_lost_for_good_goes_on_when_it_is_tried_again(
    bucket, large, tmp_path, monkeypatch
):
    found, content = large
    with cut_proxy(bucket.server.endpoint) as proxy, monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        proxy.cut_after, proxy.cuts, proxy.spare = 100_000, 1000, 14_000_000
        with pytest.raises(UserError, match="cannot be reached"):
            resume_from_s3(found, tmp_path / "file")
    there = (tmp_path / "file.part").stat().st_size
    assert 0 < there < len(content)
    resume_from_s3(found, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == content


def test_a_run_that_is_tried_again_keeps_whole_files_of_the_same_revision_only(
    address, bucket, tmp_path, monkeypatch
):
    step = step_for(tmp_path / "store", address)

    def break_off(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("components.download_model.fetch.check_room", break_off)
        for template in (b"one", b"two"):
            bucket.put(folder_of(address), {"chat_template.jinja": template})
            with pytest.raises(KeyboardInterrupt):
                download(step)
    (partial,) = (step.folder.path / "download").iterdir()
    assert partial.name == pin(ModelConfig(name=address))
    fetched = []
    monkeypatch.setattr(S3Object, "open", spy(fetched))
    folder = download(step)
    assert (folder / "chat_template.jinja").read_bytes() == b"two"
    assert sorted(fetched) == ["README.md", "model.safetensors"]


def spy(names):
    real = S3Object.open

    def opened(self, offset=0):
        names.append(self.path.rpartition("/")[2])
        return real(self, offset)

    return opened


def test_no_room_is_said_before_the_weights_are_fetched(address, tmp_path, monkeypatch):
    monkeypatch.setattr(volume.shutil, "disk_usage", lambda path: SimpleNamespace(total=100, used=99, free=1))
    with pytest.raises(UserError, match="free some space"):
        download(step_for(tmp_path / "store", address))


# What is no model


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("config.json", "has no config.json"),
        ("tokenizer.json", "has no tokenizer"),
        (
            "model.safetensors",
            r"it has consolidated\.safetensors.*pytorch_model\.bin\): only safetensors are taken",
        ),
    ],
)
def test_a_folder_that_lacks_a_file(address, bucket, missing, says):
    bucket.delete(key(address, missing))
    with pytest.raises(UserError, match=says) as error:
        pin(ModelConfig(name=address))
    assert address in str(error.value)


def test_the_context_is_checked_before_the_weights(address, bucket, tmp_path):
    with pytest.raises(UserError, match="at most 64"):
        download(step_for(tmp_path / "store", address, sequence_length=65))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("s3://{bucket}/nothing", "where there is nothing: set it to the folder that holds config.json"),
        ("s3://no-such-bucket-here/m", "is in a bucket that does not exist"),
        ("s3://UPPER/m", "small letters"),
        ("s3://{bucket}/m.gguf", "a file in S3"),
    ],
)
def test_addresses_that_lead_nowhere(bucket, name, says):
    with pytest.raises(UserError, match=says):
        pin(ModelConfig(name=name.format(bucket=bucket.name)))


def test_a_branch_is_no_revision_of_a_model_in_s3(bucket):
    with pytest.raises(UserError, match=r"set model\.revision to null"):
        classify(ModelConfig(name=f"s3://{bucket.name}/m", revision="main"))
    revision = f"etags-{'0' * 16}"
    assert classify(ModelConfig(name="s3://b/m/", revision=revision)) == S3Folder("s3://b/m", revision)


def test_credentials_are_written_nowhere(address, bucket, tmp_path, capfd, caplog):
    step = step_for(tmp_path / "store", address)
    download(step)
    said = "".join((*capfd.readouterr(), caplog.text, *step.notes))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    for credential in (bucket.server.key, bucket.server.secret):
        assert credential not in said
        assert not [path for path in files if credential.encode() in path.read_bytes()]
