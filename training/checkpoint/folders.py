"""The folders of a run's checkpoints, and what is beside them."""

import re
import shutil
from pathlib import Path

from training.store import MANIFEST, remove

_NAME = re.compile(r"step-(\d{8,})")
_DAMAGED = "damaged-"
_STAGING = ".staging-"


def checkpoints(folder: Path) -> list[Path]:
    """Sealed checkpoints, oldest first."""
    sealed = [path.parent for path in folder.glob(f"step-*/{MANIFEST}")]
    return sorted((path for path in sealed if step_of(path) is not None), key=lambda path: step_of(path) or 0)


def newest_step(folder: Path) -> int:
    """Steps done in the newest sealed checkpoint; 0 if there is none."""
    sealed = checkpoints(folder)
    return step_of(sealed[-1]) or 0 if sealed else 0


def name_of(step: int) -> str:
    """The name of the checkpoint after `step` steps."""
    return f"step-{step:08d}"


def step_of(checkpoint: Path) -> int | None:
    """The steps that a checkpoint's name says; None for a folder of another name."""
    match = _NAME.fullmatch(checkpoint.name)
    return int(match[1]) if match else None


def staging_of(folder: Path, attempt: int, step: int) -> Path:
    """Where a checkpoint is written; no two attempts ever write to one place."""
    return folder / f"{_STAGING}{attempt}-{name_of(step)}"


def quarantine(checkpoint: Path) -> None:
    """Move a damaged checkpoint to `damaged-step-<n>`, for people to look at."""
    target = checkpoint.with_name(_DAMAGED + checkpoint.name)
    shutil.rmtree(target, ignore_errors=True)
    checkpoint.rename(target)


def quarantine_unsealed(folder: Path) -> None:
    """Move what has lost its manifest, where there is nothing newer whose removal it could be left of."""
    for path in folder.glob("step-*"):
        if step_of(path) is not None and path.is_dir() and any(path.iterdir()):
            quarantine(path)


def quarantined(folder: Path) -> list[str]:
    """Names of the checkpoints that were found damaged, as they are now."""
    return [path.name for path in sorted(folder.glob(f"{_DAMAGED}step-*"))]


def clear_after(folder: Path, step: int | None) -> None:
    """Remove what was being written, and all that is newer than the checkpoint to go on from.

    Args:
        folder: Of the checkpoints.
        step: Of that checkpoint. None: there is none, and nothing but what was being written is removed.
    """
    for torn in folder.glob(f"{_STAGING}*"):
        remove(torn)
    for path in folder.glob("step-*") if step is not None else ():
        if (step_of(path) or 0) > (step or 0):
            remove(path)


def remove_all(folder: Path) -> None:
    """Remove every checkpoint of a run, also unfinished ones."""
    for checkpoint in checkpoints(folder):
        remove(checkpoint)
    shutil.rmtree(folder, ignore_errors=True)
