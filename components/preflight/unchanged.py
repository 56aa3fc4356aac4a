"""Whether a run would repeat one that is finished, so that a schedule trains only when there is something new."""

from typing import Any

from training.config import DataConfig, ModelConfig, RunConfig
from training.model_source import GgufFile, classify, model_key
from training.run_folder import RunFolder
from training.store import fingerprint, write_atomically

_FILE = "trained-from"

_DECISIVE = ("model", "data", "training", "lora")
"""Sections that decide what comes out."""


_PACE = ("streaming", "num_workers")
"""Settings of the data that decide only how fast it is read."""

_IN_CONTENT = ("source", "name", "split", "subset", "revision")
"""What a source's content stands for: a file may be replaced under its name, or be the same under another."""


def mark_of(config: RunConfig, contents: Any) -> str:
    """A fingerprint of what decides the result: pinned model, content of the data, settings of the training.

    Args:
        config: With its revisions pinned.
        contents: What identifies the content of each source of the training and of the held-out data, as JSON.
    """
    settings = config.model_dump(mode="json", include=set(_DECISIVE))
    settings["data"] = _data_settings(config.data)
    for name in ("name", "revision"):
        settings["model"].pop(name)
    return fingerprint(settings=settings, model=_model_mark(config.model), contents=contents)


def _data_settings(data: DataConfig) -> dict[str, Any]:
    """All that decides the samples besides the content of the sources."""
    own = ("train", "heldout", "train_split", "heldout_split", "subset", "revision", *_PACE)
    settings = data.model_dump(mode="json", exclude=set(own))
    for name, sources in (("train", data.train_sources), ("heldout", data.heldout_sources)):
        settings[name] = [source.model_dump(mode="json", exclude=set(_IN_CONTENT)) for source in sources]
    return settings


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
