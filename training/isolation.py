"""A check, before any step, that packed documents cannot see each other."""

import numpy as np
import torch
from torch import nn

from training.data import IGNORE, PackedSample, collate
from training.errors import UserError
from training.head import model_inputs

_LENGTH = 8


def check_isolation(model: nn.Module, device: torch.device) -> None:
    """Make sure that packed documents cannot see each other in this model, by trying it. Collective.

    Some architectures build a mask of ones when they are given none, which joins what is packed together; no
    flag of theirs tells. So the first of two documents is changed, and the second must not notice.

    Args:
        model: Sharded and loaded; two tiny forward passes are made.
        device: Where it computes.

    Raises:
        UserError: They can.
    """
    tokens = np.arange(1, 2 * _LENGTH + 1, dtype=np.int32)
    changed = np.concatenate([tokens[:_LENGTH][::-1], tokens[_LENGTH:]])
    was_training = model.training
    # Dropout would change the second document too.
    model.eval()
    with torch.no_grad():
        before, after = (_second_document(model, ids, device) for ids in (tokens, changed))
    model.train(was_training)
    if (before - after).abs().max() > 1e-5 * before.abs().max():
        used = model.config._attn_implementation
        raise UserError(
            f"model.attention '{used}' lets packed documents see each other in {type(model).__name__}: set "
            "model.attention to documents"
        )


def _second_document(model: nn.Module, ids: np.ndarray, device: torch.device) -> torch.Tensor:
    lengths = np.full(2, _LENGTH, dtype=np.int32)
    sample = PackedSample(ids.astype(np.int32), np.full(2 * _LENGTH, IGNORE, dtype=np.int32), lengths)
    logits: torch.Tensor = model(**model_inputs(collate([sample], device))).logits
    return logits[:, _LENGTH:].float()
