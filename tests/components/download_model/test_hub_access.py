"""Gated models, tokens, and downloads that were interrupted, with a stand-in for the hub."""

import os

import pytest

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
    with pytest.raises(UserError, match=r"'acme/gated' is gated: accept its licence at .*HF_TOKEN .*from a secret"):
        download(step_for(tmp_path / "store", "acme/gated", revision=revision))


@pytest.mark.parametrize("revision", [None, "c" * 40])
def test_a_gated_model_with_a_token_that_is_not_valid(gated, tmp_path, monkeypatch, revision):
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    with pytest.raises(UserError, match="refuses access to the model 'acme/gated' .*the token in HF_TOKEN is valid"):
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
        patch.setattr("huggingface_hub.file_download.http_get", one_try())
        with pytest.raises(Cut):
            download(step)
    repo.breaks = 0
    hub.ranges.clear()
    folder = download(step)
    ((path, start),) = hub.ranges
    assert path == "model.safetensors"
    assert size // 10 <= start < size // 2
    assert (folder / "model.safetensors").read_bytes() == repo.files["model.safetensors"]


class Cut(BaseException):
    """As a pod that is stopped ends a download."""


def one_try():
    """The hub's client, without its patience with connections that are cut."""
    from huggingface_hub import file_download
    from huggingface_hub.utils import httpx

    get = file_download.http_get

    def http_get(url, file, **arguments):
        try:
            return get(url, file, **{**arguments, "_nb_retries": 0})
        except (httpx.TransportError, OSError) as error:
            raise Cut from error

    return http_get


def test_progress_is_told(hub, saved_model, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(volume, "_PROGRESS_EVERY_S", 1e-6)
    hub.add("models", "acme/tiny", files_of(saved_model))
    step = step_for(tmp_path / "store", "acme/tiny")
    download(step)
    assert step.notes[0] == "downloading 0.00 GB of weights"
    assert any("of 0.0 GB after 0 s" in note for note in step.notes)
