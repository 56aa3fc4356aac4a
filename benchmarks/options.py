"""What the command line decides, for every benchmark."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Options:
    """What the command line decides, for every benchmark.

    Attributes:
        store: Keeps the converted model from one call to the next.
        precision: Of forward and backward passes.
        repetitions: How often each side is measured.
        steps: Optimizer steps of a run; the first are not counted.
    """

    store: Path
    precision: Literal["fp32", "bf16"] = "fp32"
    repetitions: int = 3
    steps: int = 8
