"""Steps whose samples are left out, because the loss or the gradient on them is not finite."""

import json

from training.run_folder import RunFolder
from training.store import write_atomically

_NAME = "skipped.json"


def skip_step(folder: RunFolder, step: int) -> None:
    """Let the attempts that follow leave out a step: it changes neither weights nor moments.

    Args:
        folder: The run.
        step: Counted from 1.
    """
    steps = sorted({*skipped_steps(folder), step})
    write_atomically(folder.path / _NAME, json.dumps(steps))


def skipped_steps(folder: RunFolder) -> frozenset[int]:
    """The steps to leave out, counted from 1."""
    path = folder.path / _NAME
    return frozenset(json.loads(path.read_text())) if path.is_file() else frozenset()
