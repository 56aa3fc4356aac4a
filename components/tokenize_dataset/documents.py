"""From rows to documents: tokens, and the token to predict at each."""

import difflib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from components.tokenize_dataset.cut import long_documents, pieces
from components.tokenize_dataset.template import Message, Span, render
from training.config import DataConfig
from training.data import IGNORE
from training.data_source import Row
from training.errors import UserError

_BATCH_ROWS = 1000
_ROLES = ("system", "user", "assistant")


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
        documents: One; several if it was split.
        num_tokens: Of the whole row, also what was cut off.
        num_unsupervised: Pieces that were dropped, as they had no supervised token.
        prompt: What the model is asked, if the format has it: keys prompt, question, reference.
    """

    documents: list[Document]
    num_tokens: int
    num_unsupervised: int
    prompt: dict[str, str] | None


@dataclass(frozen=True)
class _Tokens:
    """One row's tokens before they are cut: ids int32 [tokens], and which are supervised, bool [tokens]."""

    ids: np.ndarray
    supervised: np.ndarray
    prompt: dict[str, str] | None = None


class Encoder:
    """Encodes rows of one format.

    Args:
        data: The config.
        tokenizer: A fast tokenizer.

    Raises:
        UserError: The tokenizer lacks what the format needs.
    """

    def __init__(self, data: DataConfig, tokenizer: Any) -> None:
        self._data = data
        self._long_documents = long_documents(data)
        self._tokenizer = tokenizer
        self._encode: Callable[[list[Row]], Iterator[_Tokens]] = {
            "chat": self._chat,
            "prompt_completion": self._prompt_completion,
            "text": self._text,
        }[data.format]
        if data.format == "chat":
            if tokenizer.chat_template is None:
                raise UserError(
                    "data.format is chat, but the model's tokenizer has no chat template: set model.name to an "
                    "instruction-tuned model, or data.format to prompt_completion"
                )
        elif tokenizer.eos_token_id is None:
            raise UserError(
                f"data.format is {data.format}, but the model's tokenizer has no end-of-text token, so the "
                "model could not learn to stop: choose another model"
            )
        # Some models expect a token before every text. Chat templates write it themselves.
        starts_with_bos = tokenizer.bos_token_id is not None and tokenizer("a").input_ids[:1] == [
            tokenizer.bos_token_id
        ]
        self._bos = tokenizer.bos_token if starts_with_bos else ""

    def encode(self, rows: Iterable[Row]) -> Iterator[Encoded]:
        """Encode rows, in their order.

        Raises:
            UserError: A row has not the shape of the format, or nothing to learn; names the row.
        """
        rows = iter(rows)
        while batch := list(itertools.islice(rows, _BATCH_ROWS)):
            for row, tokens in zip(batch, self._encode(batch), strict=True):
                yield self._cut(row, tokens)

    def _chat(self, rows: list[Row]) -> Iterator[_Tokens]:
        conversations = [_messages(row, self._data.messages_column) for row in rows]
        rendered = [
            render(self._tokenizer, messages, row.origin)
            for row, messages in zip(rows, conversations, strict=True)
        ]
        encodings = self._tokenizer(
            [text for text, _ in rendered],
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )
        for messages, (text, spans), ids, offsets in zip(
            conversations, rendered, encodings.input_ids, encodings.offset_mapping, strict=True
        ):
            starts = np.fromiter((start for start, _ in offsets), np.int64, len(offsets))
            question = next((m["content"] for m in reversed(messages[:-1]) if m["role"] == "user"), "")
            yield _Tokens(
                np.asarray(ids, np.int32),
                _inside(starts, spans),
                {
                    "prompt": text[: spans[-1][0]],
                    "question": question,
                    "reference": messages[-1]["content"],
                },
            )

    def _prompt_completion(self, rows: list[Row]) -> Iterator[_Tokens]:
        prompts = [_text(row, self._data.prompt_column, "data.prompt_column") for row in rows]
        completions = [_text(row, self._data.completion_column, "data.completion_column") for row in rows]
        # Apart, because at inference the prompt is tokenized without knowing what follows.
        before = self._token_ids([self._bos + text for text in prompts])
        after = self._token_ids(completions)
        for question, reference, left, right in zip(prompts, completions, before, after, strict=True):
            ids = np.asarray([*left, *right, self._tokenizer.eos_token_id], np.int32)
            yield _Tokens(
                ids,
                np.arange(len(ids)) >= len(left),
                {"prompt": self._bos + question, "question": question, "reference": reference},
            )

    def _text(self, rows: list[Row]) -> Iterator[_Tokens]:
        texts = [_text(row, self._data.text_column, "data.text_column") for row in rows]
        for tokens in self._token_ids([self._bos + text for text in texts]):
            ids = np.asarray([*tokens, self._tokenizer.eos_token_id], np.int32)
            yield _Tokens(ids, np.ones(len(ids), bool))

    def _token_ids(self, texts: list[str]) -> list[list[int]]:
        encodings = self._tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        token_ids: list[list[int]] = encodings.input_ids
        return token_ids

    def _cut(self, row: Row, tokens: _Tokens) -> Encoded:
        capacity, num_tokens = self._data.sequence_length, len(tokens.ids)
        if num_tokens > capacity and self._long_documents == "refuse":
            raise UserError(
                f"{row.origin} has {num_tokens} tokens, but data.sequence_length is {capacity} and "
                "data.long_documents is refuse: raise data.sequence_length, shorten the row, or set "
                "data.long_documents to cut or split"
            )
        parts = pieces(num_tokens, capacity, self._long_documents)
        documents = [_document(tokens.ids[part], tokens.supervised[part]) for part in parts]
        taught = [document for document in documents if (document.labels != IGNORE).any()]
        if not taught:
            self._refuse_untaught(row, tokens)
        return Encoded(taught, num_tokens, len(documents) - len(taught), tokens.prompt)

    def _refuse_untaught(self, row: Row, tokens: _Tokens) -> None:
        if not tokens.supervised[1:].any():
            raise UserError(f"{row.origin} has no token to learn: give it an answer or a text, or remove it")
        first = int(tokens.supervised[1:].argmax()) + 2
        raise UserError(
            f"{row.origin} has no token to learn: its answer begins at token {first}, beyond "
            f"data.sequence_length {self._data.sequence_length}. Raise data.sequence_length, set "
            "data.long_documents to split, or shorten or remove the row"
        )


def _document(ids: np.ndarray, supervised: np.ndarray) -> Document:
    labels = np.full(len(ids), IGNORE, np.int32)
    labels[:-1] = np.where(supervised[1:], ids[1:], IGNORE)
    return Document(ids, labels)


def _inside(starts: np.ndarray, spans: list[Span]) -> np.ndarray:
    """Which tokens begin within a span; the bytes of one character share its beginning."""
    supervised = np.zeros(len(starts), bool)
    for first, end in spans:
        supervised |= (starts >= first) & (starts < end)
    return supervised


def _messages(row: Row, column: str) -> list[Message]:
    """A row's messages up to the last answer, checked."""
    value = _column(row, column, "data.messages_column")
    if not isinstance(value, list):
        raise UserError(
            f"{row.origin}: the column '{column}' is {_kind(value)}, but a list of {{role, content}} messages is "
            "needed. Set data.messages_column to another column, or data.format to another format"
        )
    messages = [_message(row, number, message) for number, message in enumerate(value, start=1)]
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    if not messages:
        raise UserError(
            f"{row.origin} has no message of the role 'assistant', so there is no token to learn: add the answer, "
            "or remove the row"
        )
    return messages


def _message(row: Row, number: int, message: Any) -> Message:
    where = f"{row.origin}: message {number}"
    if not isinstance(message, dict):
        raise UserError(f"{where} is {_kind(message)}, but an object with role and content is needed")
    role = message.get("role")
    if role not in _ROLES:
        raise UserError(f"{where} has the role {role!r}: the roles are {', '.join(_ROLES)}")
    _check_text(message.get("content"), f"{where}: its content")
    # A hub data set gives every message the keys of all, most of them None.
    return {key: value for key, value in message.items() if value is not None}


def _text(row: Row, column: str, field: str) -> str:
    value = _column(row, column, field)
    return _check_text(value, f"{row.origin}: the column '{column}'", f". Set {field} to another column")


def _check_text(value: Any, what: str, remedy: str = "") -> str:
    if not isinstance(value, str):
        raise UserError(f"{what} is {_kind(value)}, but text is needed{remedy}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what} holds half of a surrogate pair (\\u{ord(value[error.start]):x}), which is no character: "
            "write the text anew"
        ) from None
    return value


def _column(row: Row, column: str, field: str) -> Any:
    if column in row.values:
        return row.values[column]
    close = difflib.get_close_matches(column, list(row.values), n=1, cutoff=0.5)
    raise UserError(
        f"{row.origin} has no column '{column}' (it has: {', '.join(row.values) or 'none'}): set {field} to the "
        f"one that is meant{f', perhaps {close[0]}' if close else ''}, or data.format to another format"
    )


def _kind(value: Any) -> str:
    return "missing" if value is None else f"of type {type(value).__name__}"
