"""From rows to documents: tokens, and the token to predict at each."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from components.tokenize_dataset.cut import long_documents, pieces
from components.tokenize_dataset.documents_chat import ChatEncoder
from components.tokenize_dataset.documents_raw import RawEncoder
from components.tokenize_dataset.shapes import CONVERSATIONAL, Shape
from components.tokenize_dataset.template_special import SpecialTokens
from components.tokenize_dataset.text_tokens import TokenizedRow, Tokens, text_tokenizer
from training.config import DataConfig
from training.data import IGNORE
from training.errors import UserError
from training.sources.rows import Malformed, Row


class Document(NamedTuple):
    """Tokens that see each other and nothing else.

    Attributes:
        input_ids: int32 [tokens].
        labels: int32 [tokens]; the next token where it is supervised, else `IGNORE`.
    """

    input_ids: np.ndarray
    labels: np.ndarray


class Encoded(NamedTuple):
    """A row, encoded.

    Attributes:
        documents: One; several if it was split, or has several texts.
        num_tokens: Of the whole row, also what was cut off.
        num_unsupervised: Pieces that were dropped, as they had no supervised token.
        prompt: What the model is asked, if the row asks something that can be written as text: keys prompt,
            question, reference.
        num_texts: Texts that the row was rendered as; several where the chat template rewrites earlier turns.
        num_long: How many of these are longer than a sample.
    """

    documents: list[Document]
    num_tokens: int
    num_unsupervised: int
    prompt: dict[str, str] | None
    num_texts: int = 1
    num_long: int = 0


class Encoder:
    """Encodes rows of one shape.

    Args:
        data: The config.
        shape: What the source was found to be.
        tokenizer: A fast tokenizer.

    Raises:
        UserError: The tokenizer lacks what the shape needs, or its template cannot teach an answer.
    """

    def __init__(self, data: DataConfig, shape: Shape, tokenizer: Any) -> None:
        self._data = data
        self._long_documents = long_documents(data.model_copy(update={"format": shape.format}))
        special = SpecialTokens(tokenizer)
        texts = text_tokenizer(tokenizer)
        self._rows: ChatEncoder | RawEncoder
        if is_rendered(data, shape, tokenizer):
            self._rows = ChatEncoder(data, shape, tokenizer, special, texts)
        else:
            self._rows = RawEncoder(data, shape, tokenizer, special, texts)

    def encode(self, rows: Sequence[Row]) -> list[Encoded | Malformed]:
        """Encode rows, in their order.

        Raises:
            UserError: A row is longer than a sample, and `data.long_documents` is refuse; names the row.
        """
        return [
            tokens if isinstance(tokens, Malformed) else self._cut(row, tokens)
            for row, tokens in zip(rows, self._rows.encode(rows), strict=True)
        ]

    def _cut(self, row: Row, tokens: TokenizedRow) -> Encoded | Malformed:
        capacity, lengths = self._data.sequence_length, [len(text.ids) for text in tokens.texts]
        if max(lengths) > capacity and self._long_documents == "refuse":
            raise UserError(
                f"{row.origin} has {max(lengths)} tokens, but data.sequence_length is {capacity} and "
                "data.long_documents is refuse: raise data.sequence_length, shorten the row, or set "
                "data.long_documents to cut or split"
            )
        documents = [
            _document(text.ids[part], text.supervised[part])
            for text in tokens.texts
            for part in pieces(len(text.ids), capacity, self._long_documents)
        ]
        taught = [document for document in documents if (document.labels != IGNORE).any()]
        if not taught:
            return Malformed(row.origin, self._untaught(tokens.texts[0]))
        num_long = sum(length > capacity for length in lengths)
        return Encoded(
            taught, sum(lengths), len(documents) - len(taught), tokens.prompt, len(tokens.texts), num_long
        )

    def _untaught(self, tokens: Tokens) -> str:
        if not tokens.supervised[1:].any():
            return "has no token to learn: give it an answer or a text, or remove it"
        first = int(tokens.supervised[1:].argmax()) + 2
        return (
            f"has no token to learn: its answer begins at token {first}, beyond data.sequence_length "
            f"{self._data.sequence_length}. Raise data.sequence_length, set data.long_documents to split, or "
            "shorten or remove the row"
        )


def is_rendered(data: DataConfig, shape: Shape, tokenizer: Any) -> bool:
    """Whether rows of a shape are rendered by the model's chat template; else they are tokenized as they are."""
    if shape.format == "instruction":
        return data.prompt_template is None and tokenizer.chat_template is not None
    return shape.format == "chat" or shape.form == CONVERSATIONAL


def _document(ids: np.ndarray, supervised: np.ndarray) -> Document:
    labels = np.full(len(ids), IGNORE, np.int32)
    labels[:-1] = np.where(supervised[1:], ids[1:], IGNORE)
    return Document(ids, labels)
