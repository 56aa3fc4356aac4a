"""What a sealed checkpoint says of itself, read without trust."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from training.checkpoint.damage import is_damage
from training.checkpoint.folders import step_of
from training.errors import UserError
from training.store import MANIFEST

FORMAT = 1
"""Of the folder; another number for every change that this code could not read."""

Tier = Literal["store", "local"]

NEEDED = {"store": ".metadata", "local": "state.pt"}
"""The file without which nothing of a checkpoint can be loaded, by tier."""


class OtherVersionError(UserError):
    """Another version of Shardline made the checkpoint."""


class FileEntry(BaseModel):
    """One file of a checkpoint."""

    model_config = ConfigDict(strict=True)

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"[0-9a-f]{64}")


class _Content(BaseModel):
    about: dict[str, Any]
    files: dict[str, FileEntry]


@dataclass(frozen=True)
class Manifest:
    """A checkpoint's manifest.

    Attributes:
        step: Steps done.
        about: What else was recorded: world size, model and data set.
        files: By name.
    """

    step: int
    about: dict[str, Any]
    files: dict[str, FileEntry]


def about_checkpoint(step: int, world_size: int, tier: Tier, identity: dict[str, str]) -> dict[str, Any]:
    """What a manifest records beside the files."""
    return {"format": FORMAT, "step": step, "world_size": world_size, "tier": tier, **identity}


def read_manifest(checkpoint: Path) -> Manifest | None:
    """Read the manifest of a sealed checkpoint; None if it is damaged.

    Raises:
        OtherVersionError: Another version of Shardline made it.
        OSError: The disk does not give it now; see `is_damage`.
    """
    try:
        content = _Content.model_validate(json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8")))
    except OSError as error:
        if not is_damage(error):
            raise
        return None
    except (ValidationError, ValueError, RecursionError):
        return None
    about = content.about
    if about.get("format") != FORMAT:
        raise OtherVersionError(
            f"the checkpoint {checkpoint} was made by another version of Shardline (format "
            f"{about.get('format', 'without a number')}, this one reads {FORMAT}): go on with that version, or "
            f"remove {checkpoint.parent} to train from the start"
        )
    needed = NEEDED.get(str(about.get("tier")))
    if needed not in content.files or about.get("step") != step_of(checkpoint):
        return None
    return Manifest(about["step"], about, content.files)
