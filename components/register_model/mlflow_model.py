"""The model as MLflow loads it: an MLmodel folder around the tuned model's files, which are linked, not copied.

`mlflow.transformers.load_model` gives a text-generation pipeline, `mlflow.pyfunc.load_model` answers what a chat
or completions endpoint is asked. Nothing is loaded to write it, so the model may be of any size, and nothing in it
is a pickle. MLflow's own `save_model` would copy the weights, and fails on a local folder with transformers 5.
"""

import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from components.register_model.example import CHAT, Example
from components.tracking.model_files import ADAPTER, MLMODEL, MODEL
from training.adapter_folder import is_adapter
from training.errors import UserError
from training.model_files import TOKENIZER_FILES
from training.store import MANIFEST, checksum, write_atomically

_CARD = "README.md"

_TOKENIZER = "components/tokenizer"

_PACKAGES = ("mlflow", "torch", "transformers", "safetensors", "jinja2")


@dataclass(frozen=True)
class Contents:
    """What a version is made of.

    Attributes:
        model: The tuned model's folder.
        base: The published base model.
        base_name: Its name, for people.
        example: What the model can be asked.
        max_new_tokens: Longest answer of the pyfunc, unless more are asked for.
        card: The model card, in Markdown.
        card_facts: What the card says to programs, as the hub's cards do.
        about: Goes into MLmodel's metadata.
    """

    model: Path
    base: Path
    base_name: str
    example: Example
    max_new_tokens: int
    card: str
    card_facts: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)


def write_mlflow_model(contents: Contents, folder: Path) -> Path:
    """Write the MLmodel folder, or bring that of an earlier try up to date.

    Args:
        contents: What it is made of.
        folder: Where it lies; on the same volume as the model its files cost nothing.

    Returns:
        The folder.

    Raises:
        UserError: The model has no tokenizer.
    """
    identity = _identity(contents)
    if _identity_in(folder) != identity:
        _build(contents, folder, identity)
    facts = yaml.safe_dump(dict(contents.card_facts), sort_keys=False, allow_unicode=True)
    write_atomically(folder / _CARD, f"---\n{facts}---\n\n{contents.card}\n")
    return folder


def _build(contents: Contents, folder: Path, identity: str) -> None:
    names = [name for name in TOKENIZER_FILES if (contents.model / name).is_file()]
    if not names:
        raise UserError(
            f"the tuned model in {contents.model} has no tokenizer, so that it cannot be asked anything: run the "
            "step train again"
        )
    staging = folder.with_name(f".{folder.name}-{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    inner = ADAPTER if is_adapter(contents.model) else MODEL
    _link_all(contents.model, staging / inner, sorted(path.name for path in contents.model.iterdir()))
    _link_all(contents.model, staging / _TOKENIZER, names)
    packages = _requirements(inner == ADAPTER)
    (staging / "requirements.txt").write_text("\n".join(packages) + "\n")
    environment = {"python": platform.python_version(), "dependencies": ["-r requirements.txt"]}
    (staging / "python_env.yaml").write_text(yaml.safe_dump(environment, sort_keys=False))
    conda = [f"python={platform.python_version()}", "pip", {"pip": packages}]
    conda_environment = {"name": "mlflow-env", "channels": ["conda-forge"], "dependencies": conda}
    (staging / "conda.yaml").write_text(yaml.safe_dump(conda_environment, sort_keys=False))
    _mlmodel(contents, inner, identity, staging).save(str(staging / MLMODEL))
    shutil.rmtree(folder, ignore_errors=True)
    staging.rename(folder)


def _mlmodel(contents: Contents, inner: str, identity: str, folder: Path) -> Any:
    from mlflow import pyfunc
    from mlflow.models import Model
    from mlflow.models.signature import ModelSignature
    from mlflow.models.utils import _save_example

    example = contents.example
    model = Model(metadata={**contents.about, "task": example.task, "shardline_model": identity})
    inputs, outputs = example.schemas()
    model.signature = ModelSignature(inputs=inputs, outputs=outputs)
    _save_example(model, example.content, str(folder))
    # The base is looked for where it was; `load_model(…, base_model_path=…)` takes it from elsewhere.
    where = (
        {"local_base_model_path": str(contents.base), "peft_adaptor": ADAPTER}
        if inner == ADAPTER
        else {"model_binary": MODEL}
    )
    model.add_flavor(
        "transformers",
        transformers_version=metadata.version("transformers"),
        task="text-generation",
        inference_task=example.task,
        instance_type="TextGenerationPipeline",
        # The config in the folder says which; so it does for the tokenizer.
        pipeline_model_type="AutoModelForCausalLM",
        source_model_name=contents.base_name,
        components=["tokenizer"],
        tokenizer_type="AutoTokenizer",
        **where,
    )
    # A chat template writes the special tokens itself.
    plain = {"add_special_tokens": False} if example.task == CHAT else {}
    pyfunc.add_to_model(
        model,
        loader_module="mlflow.transformers",
        conda_env="conda.yaml",
        python_env="python_env.yaml",
        model_config={"max_new_tokens": contents.max_new_tokens, **plain},
    )
    model.model_size_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return model


def _identity(contents: Contents) -> str:
    manifest = contents.model / MANIFEST
    return checksum(manifest)[:16] if manifest.is_file() else ""


def _identity_in(folder: Path) -> str | None:
    try:
        content = yaml.safe_load((folder / MLMODEL).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return str(content["metadata"]["shardline_model"])


def _link_all(source: Path, target: Path, names: Sequence[str]) -> None:
    target.mkdir(parents=True)
    for name in names:
        try:
            os.link(source / name, target / name)
        except OSError:
            # Another volume, or one without hard links.
            (target / name).symlink_to(source / name)


def _requirements(with_adapter: bool) -> list[str]:
    """Pins of what loading takes, without the build of one machine."""
    packages = [*_PACKAGES, "peft"] if with_adapter else _PACKAGES
    return [f"{name}=={metadata.version(name).partition('+')[0]}" for name in packages]
