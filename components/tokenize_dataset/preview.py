"""Documents as people can read them: token by token."""

from typing import Any, NamedTuple

import numpy as np

from components.tokenize_dataset.documents import Document
from training.data import IGNORE


class Piece(NamedTuple):
    """A token, or the few that spell one character.

    Attributes:
        ids: Its ids.
        text: What it adds to the text.
        supervised: Whether the model learns to say it.
    """

    ids: list[int]
    text: str
    supervised: bool


def pieces_of(document: Document, tokenizer: Any) -> list[Piece]:
    """A document's tokens with what each of them says."""
    # A label stands one position before the token that it names.
    supervised = np.concatenate([[False], document.labels[:-1] != IGNORE]).tolist()
    pieces: list[Piece] = []
    group: list[int] = []
    before: list[int] = []
    for position, token in enumerate(document.input_ids.tolist()):
        group.append(token)
        text = _added(before, group, tokenizer)
        is_last = position + 1 == len(supervised)
        # A part of a character decodes to a replacement; what is no more than four bytes is waited for.
        if (
            text.endswith("\ufffd")
            and len(group) < 4
            and not is_last
            and supervised[position + 1] == supervised[position]
        ):
            continue
        pieces.append(Piece(group, text, supervised[position]))
        before, group = group, []
    return pieces


def _added(before: list[int], group: list[int], tokenizer: Any) -> str:
    # After the tokens before them, as some decoders drop a space at the beginning of a text.
    start = len(_decoded(before, tokenizer))
    return _decoded(before + group, tokenizer)[start:]


def _decoded(ids: list[int], tokenizer: Any) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text
