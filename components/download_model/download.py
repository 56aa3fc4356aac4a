"""From `model.name` to a published folder that every later step loads from."""

import shutil
import time
from pathlib import Path
from typing import Any

from components.download_model.convert import convert
from components.download_model.describe import check_context, describe, read_config
from components.download_model.fetch import copy_folder, fetch_from_hub, fetch_from_s3
from components.step import Step
from training.config import RunConfig
from training.errors import UserError
from training.hub import quiet_libraries
from training.model_source import (
    GgufFile,
    HubModel,
    LocalFolder,
    ModelSource,
    S3Folder,
    classify,
    model_key,
    pin,
    takes_weights,
)
from training.store import Store, about

_KINDS = {HubModel: "hub", LocalFolder: "folder", S3Folder: "s3", GgufFile: "gguf"}


def download(step: Step) -> Path:
    """Publish the run's model, unless it is in the store already.

    Returns:
        `<root>/models/<key>`.

    Raises:
        UserError: The model cannot be had, is of a kind that cannot be trained, or its context is shorter than
            `data.sequence_length` or an answer of `evaluation.max_new_tokens`.
    """
    quiet_libraries()
    started = time.monotonic()
    config = step.folder.config()
    # Pinned once, so that a branch that moves meanwhile cannot split key and content.
    model = config.model.model_copy(update={"revision": pin(config.model)})
    source = classify(model)
    key = model_key(model)
    store = Store(step.folder.root)
    folder = store.get("models", key)
    found = folder is not None
    partial = step.folder.path / "download"
    if folder is None:
        # The manifest is written when the block ends, and by then the facts are known.
        facts: dict[str, Any] = {}
        with store.publish("models", key, facts) as staging:
            licence = _fill(step, config, source, staging, partial)
            facts.update(source=model.name, revision=model.revision, kind=_KINDS[type(source)])
            try:
                facts.update(license=licence, **describe(staging, takes_weights(model)))
            except UserError:
                shutil.rmtree(partial, ignore_errors=True)  # what is broken has to be fetched again
                raise
        folder = store.path("models", key)
    shutil.rmtree(partial, ignore_errors=True)
    known = about(folder)
    check_context(known["context_length"], config)
    step.folder.save_input("model", folder)
    size = f"{known['bytes'] / 1e9:.2f} GB" if takes_weights(model) else "new weights"
    summary = f"{known['num_parameters'] / 1e6:,.0f} M parameters, {size}"
    step.note(
        f"{'model already in the store' if found else 'model published'}: {model.name}, {summary}, "
        f"context {known['context_length'] or 'unknown'}, in {time.monotonic() - started:.1f} s"
    )
    step.detail = f"{summary}{', already in the store' if found else ''}"
    return folder


def _fill(step: Step, config: RunConfig, source: ModelSource, staging: Path, partial: Path) -> str | None:
    """Write the model's files, and return its licence if it is known."""

    def check(folder: Path) -> None:
        check_context(read_config(folder).context_length, config)

    if isinstance(source, HubModel):
        return fetch_from_hub(source, config.model, partial, staging, check, step.note)
    if isinstance(source, S3Folder):
        return fetch_from_s3(source, config.model, partial, staging, check, step.note)
    if isinstance(source, LocalFolder):
        check(source.path)
        return copy_folder(source.path, config.model, staging)
    assert isinstance(source, GgufFile)
    if takes_weights(config.model):
        step.note(f"converting {source.path.name} to bf16 safetensors")
    return convert(source, config.model, staging)
