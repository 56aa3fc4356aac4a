"""Whether a run would repeat one that is finished, so that a schedule trains only when there is something new."""

from collections.abc import Sequence

from training.config import ModelConfig, RunConfig
from training.model_source import GgufFile, classify, model_key
from training.run_folder import RunFolder
from training.store import fingerprint, write_atomically

_FILE = "trained-from"

_DECISIVE = ("model", "data", "training", "lora")
"""Sections that decide what comes out."""


def mark_of(config: RunConfig, contents: Sequence[str | None]) -> str:
    """A fingerprint of what decides the result: pinned model, content of the data, settings of the training.

    Args:
        config: With its revisions pinned.
        contents: What identifies the content of the data.
    """
    settings = config.model_dump(mode="json", include=set(_DECISIVE))
    # A file may be replaced under its name, or be the same under another.
    for section, names in (("data", ("train", "heldout", "revision")), ("model", ("name", "revision"))):
        for name in names:
            settings[section].pop(name)
    return fingerprint(settings=settings, model=_model_mark(config.model), contents=list(contents))


def _model_mark(model: ModelConfig) -> str:
    source = classify(model)
    if isinstance(source, GgufFile):
        # By what is known at once: a checksum of it would take longer than all the rest of the step.
        state = source.path.stat()
        return fingerprint(gguf=[source.path.name, state.st_size, state.st_mtime_ns])
    return model_key(model)


def save_mark(folder: RunFolder, mark: str) -> None:
    """Keep a run's mark in its folder."""
    write_atomically(folder.path / _FILE, mark)


def finished_before(folder: RunFolder, mark: str) -> str | None:
    """Name of another run in the same store that has this mark and was registered; None if there is none."""
    for path in sorted(folder.path.parent.glob(f"*/{_FILE}")):
        other = path.parent
        is_finished = (other / "registration.json").is_file()
        if other.name != folder.run and is_finished and path.read_text() == mark:
            return other.name
    return None
