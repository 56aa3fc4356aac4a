"""What an evaluation's job is asked to measure, and where each result lies: what its step and its ranks share."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from training.run_folder import RunFolder
from training.store import write_atomically

ModelName = Literal["base", "tuned", "champion"]


@dataclass(frozen=True)
class Subject:
    """A model to measure.

    Attributes:
        name: Which of the three it is.
        folder: Weights, config and tokenizer in Hugging Face format; or an adapter with them.
        base_folder: The model that an adapter belongs to.
        key: Fingerprint of all that its result depends on, but for the precision that the ranks choose.
    """

    name: ModelName
    folder: Path
    base_folder: Path | None
    key: str


def measured_folder(run: RunFolder, name: ModelName) -> Path:
    """Where the result of a model lies; see `training.measure.measured`."""
    return run.evaluation / "measured" / name


def save_request(run: RunFolder, subjects: Sequence[Subject]) -> None:
    """Write `<run>/evaluation/request.json`."""
    run.evaluation.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"models": [asdict(subject) for subject in subjects]}, indent=1, default=str)
    write_atomically(run.evaluation / "request.json", content)


def read_request(run: RunFolder) -> list[Subject]:
    """The models of `<run>/evaluation/request.json`, in their order."""
    content = json.loads((run.evaluation / "request.json").read_text(encoding="utf-8"))
    return [
        Subject(
            name=model["name"],
            folder=Path(model["folder"]),
            base_folder=None if model["base_folder"] is None else Path(model["base_folder"]),
            key=model["key"],
        )
        for model in content["models"]
    ]
