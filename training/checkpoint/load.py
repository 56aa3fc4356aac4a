"""Loading a checkpoint that was found whole."""

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
from transformers import PreTrainedModel

from training.checkpoint.local_tier import read_local
from training.checkpoint.state import training_state
from training.dcp_errors import plain_errors
from training.errors import UserError
from training.store import about


def load_checkpoint(
    checkpoint: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, identity: dict[str, str]
) -> int:
    """Load a checkpoint into model and optimizer; one of the store at any world size. Collective.

    Args:
        checkpoint: As `choose_checkpoint` gives it.
        model: Sharded.
        optimizer: Its optimizer.
        identity: What the state has to belong to.

    Returns:
        Steps done.

    Raises:
        UserError: It belongs to another model or data set.
    """
    recorded = about(checkpoint)
    for key, value in identity.items():
        if recorded.get(key) != value:
            raise UserError(
                f"the checkpoint {checkpoint} was made with the {key} {recorded.get(key)}, but this run uses "
                f"{value}: start a run of another name, or go back to that {key}"
            )
    state = training_state(model, optimizer)
    if recorded["tier"] == "local":
        state = read_local(checkpoint, state)
    else:
        with plain_errors():
            dcp.load(state, checkpoint_id=checkpoint)
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=StateDictOptions(strict=True))
    return int(recorded["step"])
