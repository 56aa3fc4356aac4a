"""The models of a run that are measured, and the names of their results."""

import secrets
from pathlib import Path

from components.evaluate.champion import Champion
from training.config import RunConfig
from training.measure.request import Subject
from training.measure.task_files import identity_of
from training.run_folder import RunFolder, RunInputs
from training.store import MANIFEST, checksum, fingerprint

_VERSION = 4
"""Part of every result's fingerprint: raise it when the way of measuring changes."""


def subjects_of(
    folder: RunFolder, config: RunConfig, inputs: RunInputs, champion: Champion | None
) -> list[Subject]:
    """Base, tuned model and champion, in this order.

    Args:
        folder: The run's.
        config: The run's.
        inputs: The run's.
        champion: None: none is measured.
    """
    dataset = inputs.dataset.name
    base = Subject("base", inputs.model, None, _key(config, inputs.model.name, dataset))
    tuned = Subject("tuned", folder.model, inputs.model, _key(config, _identity(folder.model), dataset))
    subjects = [base, tuned]
    if champion is not None:
        key = _key(config, _identity(champion.folder), dataset)
        subjects.append(Subject("champion", champion.folder, champion.base_folder, key))
    return subjects


def _identity(model: Path) -> str:
    manifest = model / MANIFEST
    # A model without a manifest has no identity to compare, so its result is never taken again.
    return checksum(manifest) if manifest.is_file() else secrets.token_hex(16)


def _key(config: RunConfig, model: str, dataset: str) -> str:
    # Not the device, nor the number of ranks: they change the last digits only, and one result should serve all.
    evaluation = config.evaluation
    return fingerprint(
        model=model,
        dataset=dataset,
        precision=config.training.precision,
        attention=config.model.attention,
        num_generations=evaluation.num_generations,
        num_scored=evaluation.num_scored,
        max_new_tokens=evaluation.max_new_tokens,
        tasks=[identity_of(task) for task in evaluation.tasks],
        task_limit=evaluation.task_limit,
        num_fewshot=evaluation.num_fewshot,
        seed_of_weights=config.training.seed if config.model.init == "random" else None,
        resize_vocabulary=config.model.resize_vocabulary,
        version=_VERSION,
    )
