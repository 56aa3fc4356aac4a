"""What one model achieved on the held-out rows, and the file that keeps it."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from training.store import write_atomically

ModelName = Literal["base", "tuned"]


@dataclass(frozen=True)
class Generation:
    """A held-out question with its reference and one model's answer."""

    question: str
    reference: str
    answer: str


@dataclass(frozen=True)
class ModelResult:
    """What one model achieved on the held-out rows."""

    name: ModelName
    loss: float
    """Cross-entropy in nats per supervised token."""
    num_supervised: int
    """Tokens that the loss is taken over."""
    seconds: float
    """How long the measurement took, loading included."""
    generations: tuple[Generation, ...]
    made_from: str
    """Fingerprint of all that the result depends on: model, data set, settings."""

    @property
    def perplexity(self) -> float:
        """exp(loss): among how many equally likely tokens the model, on average, still has to choose."""
        return perplexity(self.loss)


def perplexity(loss: float) -> float:
    """exp(loss), held below the largest double so that it stays a number that JSON can carry."""
    return math.exp(min(loss, 700.0))


def save_result(result: ModelResult, file: Path) -> None:
    """Write a result as JSON."""
    content = {**asdict(result), "perplexity": result.perplexity}
    write_atomically(file, json.dumps(content, indent=1, ensure_ascii=False))


def load_result(file: Path) -> ModelResult | None:
    """Read a result that `save_result` wrote; None if it is not there or damaged, so that it is measured again."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        del content["perplexity"]
        generations = tuple(Generation(**generation) for generation in content.pop("generations"))
        return ModelResult(**content, generations=generations)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
