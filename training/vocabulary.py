"""How many tokens a model has embeddings for, and how many it needs."""

from collections.abc import Mapping
from typing import Any

from training.errors import UserError


def embedding_rows(model: Mapping[str, Any], dataset: Mapping[str, Any], resize: bool) -> int:
    """Rows of the embedding that a run's model has, so that every token of its data has one.

    Args:
        model: The published model's manifest: `vocab_size`, the rows in its files.
        dataset: The published data set's: `max_token_id`, and with `resize` also `vocab_size`, the tokens of the
            tokenizer.
        resize: `model.resize_vocabulary`.

    Raises:
        UserError: The data has tokens without an embedding, which on a rank would be an index error.
    """
    rows, highest = int(model["vocab_size"]), int(dataset["max_token_id"])
    if resize:
        return max(rows, int(dataset["vocab_size"]), highest + 1)
    if highest >= rows:
        raise UserError(
            f"the data has the token {highest}, but the model's vocabulary ends at {rows - 1}: its tokenizer has "
            "more tokens than the model has embeddings. Set model.resize_vocabulary to true to give the new ones "
            "embeddings, or model.name to a model whose tokenizer fits it"
        )
    return rows
