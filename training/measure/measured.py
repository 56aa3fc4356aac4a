"""What the ranks measured of one model, document by document, and the folder that keeps it.

<folder>/
measured.json       everything but the documents
documents.npz       of every held-out document: nats, num_supervised, source
"""

import json
import shutil
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from training.measure.request import ModelName
from training.store import write_atomically


@dataclass(frozen=True)
class Answer:
    """A held-out question with its reference and the model's greedy answer.

    Attributes:
        question: For people: the last message of the user.
        reference: The answer in the data.
        answer: The model's.
        source: The data source it is from; empty where that is not recorded.
        is_shown: Whether it stands in the report.
        is_scored: Whether it is compared with the reference.
    """

    question: str
    reference: str
    answer: str
    source: str
    is_shown: bool
    is_scored: bool


@dataclass(frozen=True)
class TaskScore:
    """One measure of one lm-eval task.

    Attributes:
        value: As lm-eval says it.
        stderr: Its standard error; None where lm-eval has none.
        count: Examples.
        lower_is_better: Whether it is, as of a perplexity.
    """

    value: float
    stderr: float | None
    count: int
    lower_is_better: bool


@dataclass(frozen=True)
class Documents:
    """The held-out documents that have something to predict, in the data set's order.

    Attributes:
        nats: float64 [documents]; cross-entropy, summed over a document's supervised tokens.
        num_supervised: int64 [documents]; those tokens.
        source: int64 [documents]; index of its data source.
    """

    nats: np.ndarray
    num_supervised: np.ndarray
    source: np.ndarray


@dataclass(frozen=True)
class Measured:
    """What was measured of one model.

    Attributes:
        name: Which model.
        key: Of its subject, see `training.measure.request`.
        precision: Dtype that it computed in, as `bfloat16`.
        device: Kind of device, as `cuda`.
        sharding: `none` or `full`.
        num_ranks: Ranks that shared the work.
        seconds: How long it took, loading included.
        sources: Names of the data sources.
        documents: Loss of each.
        answers: To held-out prompts.
        tasks: By `task/measure`.
    """

    name: ModelName
    key: str
    precision: str
    device: str
    sharding: str
    num_ranks: int
    seconds: float
    sources: tuple[str, ...]
    documents: Documents
    answers: tuple[Answer, ...]
    tasks: dict[str, TaskScore]

    @property
    def loss(self) -> float:
        """Cross-entropy in nats per supervised token."""
        return float(self.documents.nats.sum() / self.documents.num_supervised.sum())

    @property
    def num_supervised(self) -> int:
        """Tokens that the loss is taken over."""
        return int(self.documents.num_supervised.sum())


_COLUMNS = ("nats", "num_supervised", "source")


def save_measured(measured: Measured, folder: Path) -> None:
    """Write a result; the file that makes it one comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "measured.json").unlink(missing_ok=True)
    np.savez(folder / "documents.npz", **{name: getattr(measured.documents, name) for name in _COLUMNS})
    content = asdict(measured)
    del content["documents"]
    write_atomically(folder / "measured.json", json.dumps(content, indent=1, ensure_ascii=False))


def load_measured(folder: Path, key: str) -> Measured | None:
    """Read a result; None if it is not there, of another key, or damaged, so that it is measured again."""
    try:
        content = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
        if content["key"] != key:
            return None
        with np.load(folder / "documents.npz", allow_pickle=False) as arrays:
            documents = Documents(*(arrays[name] for name in _COLUMNS))
        return Measured(
            **content
            | {
                "sources": tuple(content["sources"]),
                "documents": documents,
                "answers": tuple(Answer(**answer) for answer in content["answers"]),
                "tasks": {name: TaskScore(**score) for name, score in content["tasks"].items()},
            }
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile):
        return None


def copy_measured(source: Path, folder: Path) -> None:
    """Copy a result; the file that makes it one comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "measured.json").unlink(missing_ok=True)
    for name in ("documents.npz", "measured.json"):
        shutil.copyfile(source / name, folder / name)
