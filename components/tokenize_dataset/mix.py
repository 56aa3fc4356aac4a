"""How often each row is trained on in an epoch, so that every source has the share that it is given."""

from collections.abc import Sequence

import numpy as np

from components.tokenize_dataset.row_hash import falls_below


def passes(num_tokens: Sequence[int], weights: Sequence[float | None]) -> list[float]:
    """How often each source is gone through in an epoch, which is as long as all sources together.

    Args:
        num_tokens: Tokens to train on of each source, above 0.
        weights: `DataSource.weight` of each; all None for every row once.
    """
    given = [weight for weight in weights if weight is not None]
    if not given:
        return [1.0] * len(num_tokens)
    assert len(given) == len(num_tokens)
    epoch = sum(num_tokens)
    return [weight / sum(given) * epoch / tokens for weight, tokens in zip(given, num_tokens, strict=True)]


def repeats(hashes: np.ndarray, num_passes: float) -> np.ndarray:
    """How often rows are in an epoch: every whole pass, and the pass that is left for those whose hash decides so.

    Args:
        hashes: uint64 [rows, 2]. The second half decides, as the first has decided on the split.
        num_passes: As `passes` gives it.

    Returns:
        int64 [rows].
    """
    whole, left = divmod(num_passes, 1)
    return int(whole) + falls_below(hashes[:, 1], left).astype(np.int64)
