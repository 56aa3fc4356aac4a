"""Gated models, tokens, and downloads that were interrupted, with a stand-in for the hub."""

import os

import pytest
from huggingface_hub import file_download

from components.download_model import volume
from components.download_model.download import download
from tests.components.download_model.test_download_model import files_of, hub, saved_model, step_for  # noqa: F401
from training.errors import UserError
from training.store import verify

TOKEN = "hf_averysecrettoken"


@pytest.fixture
def gated(hub, saved_model):  # noqa: F811
    return hub.add("models", "acme/gated", files_of(saved_model), gated=True, token=TOKEN)


@pytest.mark.parametrize("revision", [None, "c" * 40])
def test_a_gated_model_without_a_token(gated, tmp_path, revision):
    with pytest.raises(
        UserError, match=r"'acme/gated' is gated: accept its licence at .*HF_TOKEN .*from a secret"
    ):
        download(step_for(tmp_path / "store", "acme/gated", revision=revision))


@pytest.mark.parametrize("revision", [None, "c" * 40])
def test_a_gated_model_with_a_token_that_is_not_valid(gated, tmp_path, monkeypatch, revision):
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    with pytest.raises(
        UserError, match=r"refuses access to the model 'acme/gated' .*the token in HF_TOKEN is valid"
    ):
        download(step_for(tmp_path / "store", "acme/gated", revision=revision))


def test_a_gated_model_with_the_token_of_an_account_that_may_not_read_it(gated, hub, tmp_path, monkeypatch):  # noqa: F811
    hub.add("models", "acme/other", {}, token="hf_of_someone_else")
    monkeypatch.setenv("HF_TOKEN", "hf_of_someone_else")
    with pytest.raises(UserError, match="is gated: accept its licence"):
        download(step_for(tmp_path / "store", "acme/gated"))


def test_a_gated_model_with_its_token_which_is_written_nowhere(gated, tmp_path, monkeypatch, capfd, caplog):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    caplog.set_level("DEBUG")
    step = step_for(tmp_path / "store", "acme/gated")
    folder = download(step)
    assert verify(folder) == []
    said = "".join((*capfd.readouterr(), caplog.text, *step.notes, step.detail))
    assert TOKEN not in said
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 8
    assert not [path for path in files if TOKEN.encode() in path.read_bytes() or TOKEN in str(path)]
    assert os.environ["HF_TOKEN"] == TOKEN


def test_a_download_that_was_interrupted_asks_for_the_rest_only(hub, saved_model, tmp_path, monkeypatch):  # noqa: F811
    repo = hub.add("models", "acme/tiny", files_of(saved_model), breaks=0)
    step = step_for(tmp_path / "store", "acme/tiny")
    size = len(repo.files["model.safetensors"])

    def cut_all_that_follows(*arguments):
        repo.break_after, repo.breaks = size // 10, 3

    with monkeypatch.context() as patch:
        patch.setattr("components.download_model.fetch.check_room", cut_all_that_follows)
        patch.setattr(file_download, "http_get", one_try())
        # What it writes at a time; a part of that is lost with the connection.
        patch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100)
        with pytest.raises(Cut):
            download(step)
    repo.breaks = 0
    hub.ranges.clear()
    folder = download(step)
    ((path, start),) = hub.ranges
    assert path == "model.safetensors"
    assert size // 10 - 100 < start <= size // 10
    assert (folder / "model.safetensors").read_bytes() == repo.files["model.safetensors"]


class Cut(BaseException):
    """As a pod that is stopped ends a download."""


def one_try():
    """The hub's client, whose process ends where it would ask again after a connection was cut."""
    get = file_download.http_get

    def http_get(url, temp_file, *, resume_size=0, **arguments):
        if resume_size:
            raise Cut
        get(url, temp_file, **arguments)

    return http_get


def test_a_hub_that_does_not_tell_sizes(hub, saved_model, tmp_path):  # noqa: F811
    hub.add("models", "acme/tiny", files_of(saved_model), tells_sizes=False)
    folder = download(step_for(tmp_path / "store", "acme/tiny"))
    for name in ("model.safetensors", "tokenizer.json"):
        assert (folder / name).read_bytes() == (saved_model / name).read_bytes()


@pytest.mark.parametrize("surplus", [0, 1])
def test_a_part_that_is_whole_or_too_long(hub, saved_model, tmp_path, surplus):  # noqa: F811
    repo = hub.add("models", "acme/tiny", files_of(saved_model))
    step = step_for(tmp_path / "store", "acme/tiny")
    part = step.folder.path / "download" / repo.commit / "model.safetensors.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(repo.files["model.safetensors"] + b"x" * surplus)
    folder = download(step)
    assert (folder / "model.safetensors").read_bytes() == repo.files["model.safetensors"]
    assert ("model.safetensors" in {path for path, _ in hub.ranges}) is bool(surplus)


def test_a_run_that_is_killed_while_it_publishes_fetches_nothing_again(hub, saved_model, tmp_path, monkeypatch):  # noqa: F811
    repo = hub.add("models", "acme/tiny", files_of(saved_model))
    step = step_for(tmp_path / "store", "acme/tiny")
    with monkeypatch.context() as patch:
        patch.setattr("training.store.checksum", raising(Cut))
        with pytest.raises(Cut):
            download(step)
    assert hub.ranges
    hub.ranges.clear()
    folder = download(step)
    assert not hub.ranges
    assert verify(folder) == []
    assert (folder / "model.safetensors").read_bytes() == repo.files["model.safetensors"]
    assert not (step.folder.path / "download").exists()


def test_weights_that_are_broken_are_fetched_again(hub, saved_model, tmp_path):  # noqa: F811
    whole = files_of(saved_model)
    repo = hub.add("models", "acme/tiny", whole | {"model.safetensors": b"\xff" * 1000})
    step = step_for(tmp_path / "store", "acme/tiny")
    with pytest.raises(UserError, match="not a whole safetensors file"):
        download(step)
    repo.files["model.safetensors"] = whole["model.safetensors"]
    assert verify(download(step)) == []


def test_a_volume_without_hard_links(hub, saved_model, tmp_path, monkeypatch):  # noqa: F811
    hub.add("models", "acme/tiny", files_of(saved_model))
    monkeypatch.setattr("os.link", raising(OSError(95, "Operation not supported")))
    assert verify(download(step_for(tmp_path / "store", "acme/tiny"))) == []


def test_what_an_earlier_version_left_of_a_download_is_removed(hub, saved_model, tmp_path):  # noqa: F811
    hub.add("models", "acme/tiny", files_of(saved_model))
    step = step_for(tmp_path / "store", "acme/tiny")
    left = step.folder.path / "download"
    for name in ("config.json", ".cache/huggingface/download/model.safetensors.incomplete", "b" * 40 + "/x.part"):
        (left / name).parent.mkdir(parents=True, exist_ok=True)
        (left / name).write_bytes(b"half")
    (left / "link").symlink_to(saved_model, target_is_directory=True)
    assert verify(download(step)) == []
    assert not left.exists()
    assert (saved_model / "config.json").is_file()


def raising(error):
    def fail(*arguments, **options):
        raise error

    return fail


def test_a_file_that_the_hub_does_not_hand_out_over_http(hub, saved_model, tmp_path, monkeypatch):  # noqa: F811
    hub.add("models", "acme/tiny", files_of(saved_model))
    monkeypatch.setattr("huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE", 10_000)
    with pytest.raises(UserError, match=r"model\.safetensors of the hub model 'acme/tiny' has .*`hf download`"):
        download(step_for(tmp_path / "store", "acme/tiny"))


def test_progress_is_told(hub, saved_model, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(volume, "_PROGRESS_EVERY_S", 1e-6)
    hub.add("models", "acme/tiny", files_of(saved_model))
    step = step_for(tmp_path / "store", "acme/tiny")
    download(step)
    assert step.notes[0] == "downloading 0.00 GB of weights"
    assert any("of 0.0 GB after 0 s" in note for note in step.notes)
