"""The section `checkpoint`."""

from pathlib import PurePosixPath

from pydantic import Field, field_validator

from training.config.section import Section


class CheckpointConfig(Section):
    """When and where the training state is saved."""

    every_steps: int = Field(default=100, ge=1)
    """Steps between checkpoints; one more is saved when the run is asked to stop."""

    every_s: float | None = Field(default=None, gt=0)
    """Most seconds between two checkpoints: one is saved at the next step, however few steps have passed. null:
    only `every_steps` counts."""

    asynchronous: bool = True
    """Write checkpoints while training goes on; a step waits only until the state is copied to host memory. That
    copy takes as much memory as the state itself."""

    timeout_s: float = Field(default=1800, gt=0)
    """Most seconds that writing a checkpoint in the background may take. Training goes on meanwhile; past this,
    the disk counts as hung."""

    keep: int = Field(default=3, ge=1)
    """Newest checkpoints that are kept while the run goes on. One is removed only once a newer one was read back
    and found whole."""

    local_folder: str | None = None
    """A folder on a fast disk of each node. Checkpoints are written there, and copied to the store in the
    background; a restart on the same nodes reads them from there."""

    keep_after_finish: bool = False
    """Keep checkpoints when the run has finished. They are several times the model's size, and the exported
    model does not need them."""

    @field_validator("local_folder")
    @classmethod
    def _check_local_folder(cls, folder: str | None) -> str | None:
        path = PurePosixPath(folder or "/")
        if not path.is_absolute() or ".." in path.parts:
            raise ValueError(
                f"checkpoint.local_folder is {folder!r}: give an absolute path of the nodes, such as "
                "/local/checkpoints"
            )
        return folder
