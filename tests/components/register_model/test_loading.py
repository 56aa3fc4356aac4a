"""A version that MLflow loads: a pipeline that writes, and a pyfunc that answers."""

from pathlib import Path
from typing import Any

import pytest

from tests.registering import ReadyRun, register
from training.run_folder import RunFolder


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def load(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    import mlflow

    made = register(folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", made.tracking_uri)
    return mlflow.transformers.load_model(made.uri), mlflow.pyfunc.load_model(made.uri)


def test_a_chat_model_by_reference(ready_run: ReadyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ready_run()
    pipeline, pyfunc = load(folder, monkeypatch)
    assert pipeline("what is", max_new_tokens=3)[0]["generated_text"].startswith("what is")
    assert pyfunc.metadata.signature.inputs.input_names()[0] == "messages"
    # The first held-out prompt.
    assert pyfunc.input_example == {"messages": [{"role": "user", "content": "what is a pod"}]}
    (answer,) = pyfunc.predict(pyfunc.input_example)
    assert answer["choices"][0]["message"]["role"] == "assistant"
    # <|user|> what is a pod <|end|> <|assistant|>, and no special token twice.
    assert answer["usage"]["prompt_tokens"] == 7
    assert 0 < answer["usage"]["completion_tokens"] <= 4
    (longer,) = pyfunc.predict({**pyfunc.input_example, "max_tokens": 1})
    assert longer["usage"]["completion_tokens"] == 1


def test_nothing_was_copied_and_nothing_can_run_code(ready_run: ReadyRun) -> None:
    folder = ready_run()
    before = sorted(folder.model.iterdir())
    register(folder)
    assert sorted(folder.model.iterdir()) == before
    registered = folder.path / "registered"
    assert (registered / "model" / "model.safetensors").samefile(folder.model / "model.safetensors")
    files = {str(path.relative_to(registered)) for path in registered.rglob("*") if path.is_file()}
    assert {"MLmodel", "requirements.txt", "input_example.json", "README.md", "model/config.json"} <= files
    assert {Path(name).suffix for name in files} <= {"", ".json", ".jinja", ".safetensors", ".yaml", ".txt", ".md"}
    requirements = (registered / "requirements.txt").read_text().splitlines()
    assert all("==" in line and "+" not in line for line in requirements)
    assert {line.partition("==")[0] for line in requirements} >= {"mlflow", "torch", "transformers"}
    card = (registered / "README.md").read_text()
    assert card.startswith("---\nbase_model: org/base\nlicense: apache-2.0\n")
    assert "mlflow.transformers.load_model('models:/shardline-model/VERSION')" in card


def test_a_copy_beside_a_database(ready_run: ReadyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ready_run(artifact="copy")
    pipeline, _ = load(folder, monkeypatch)
    assert pipeline("what is", max_new_tokens=2)[0]["generated_text"].startswith("what is")
    copies = list((folder.root / "mlflow-artifacts").rglob("model.safetensors"))
    assert len(copies) == 1
    assert not copies[0].samefile(folder.model / "model.safetensors")


def test_a_disk_without_hard_links(ready_run: ReadyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no hard links here")

    folder = ready_run()
    with monkeypatch.context() as patch:
        patch.setattr("components.register_model.mlflow_model.os.link", refuse)
        register(folder)
    assert (folder.path / "registered" / "model" / "model.safetensors").is_symlink()


def test_a_model_for_texts(ready_run: ReadyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    _, pyfunc = load(ready_run(shape="text"), monkeypatch)
    assert pyfunc.metadata.signature.inputs.input_names()[0] == "prompt"
    assert pyfunc.input_example == {"prompt": "<|user|> what is a pod"}
    (answer,) = pyfunc.predict(pyfunc.input_example)
    assert answer["object"] == "text_completion"
    assert answer["usage"]["prompt_tokens"] == 5


def test_an_adapter_with_its_base_at_hand(
    ready_run: ReadyRun, tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    from training.model_files import TOKENIZER_FILES
    from training.store import seal

    folder = ready_run()
    for path in folder.model.iterdir():
        if path.name not in TOKENIZER_FILES:
            path.unlink()
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(tiny_llama)
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    get_peft_model(base, config).save_pretrained(folder.model)
    (folder.model / "README.md").unlink()
    seal(folder.model, {"base_model": "m" * 16})

    pipeline, pyfunc = load(folder, monkeypatch)
    assert isinstance(pipeline.model, PeftModel)
    (answer,) = pyfunc.predict(pyfunc.input_example)
    assert answer["usage"]["completion_tokens"] > 0
    # The adapter counts.
    tokens = torch.tensor([[1, 2, 3]])
    plain = AutoModelForCausalLM.from_pretrained(tiny_llama)
    expected = PeftModel.from_pretrained(plain, folder.model)(tokens).logits
    assert torch.equal(pipeline.model(tokens).logits, expected)
    # The store is elsewhere.
    (folder.root / "models" / ("m" * 16)).rename(tmp_path / "base")
    elsewhere = mlflow.transformers.load_model("models:/shardline-model/1", base_model_path=str(tmp_path / "base"))
    assert torch.equal(elsewhere.model(tokens).logits, expected)


def test_a_model_without_tokenizer(ready_run: ReadyRun, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ready_run()
    for path in folder.model.glob("*token*"):
        path.unlink()
    (folder.model / "chat_template.jinja").unlink()
    with pytest.raises(SystemExit):
        register(folder)
    assert "has no tokenizer" in capsys.readouterr().err
