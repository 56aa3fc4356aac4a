"""Special tokens that a row spells out in its own text."""

import re
from typing import Any, NamedTuple

from components.tokenize_dataset.messages import Conversation
from components.tokenize_dataset.unusable import UnusableRow

_FIRST = 0xF0000
"""Of a private use plane: characters that stand for special tokens while a template renders the text."""

_LAST = 0xFFFFD


class Spelled(NamedTuple):
    """A special token that is text: where it begins, and what it says."""

    start: int
    text: str


class SpecialTokens:
    """The tokens that steer a model, such as the end of a turn, found where a row's text spells them.

    In a conversation they are the template's to write, so in a message they are text: they are hidden while the
    template renders, so that where they come from is known, and are tokenized as the characters that they are.

    Args:
        tokenizer: A fast tokenizer. Added tokens that are not special, such as Qwen3's `<think>`, are for rows
            to write and are no concern here.
    """

    def __init__(self, tokenizer: Any) -> None:
        added = tokenizer.added_tokens_decoder
        self.ids = sorted(number for number, token in added.items() if token.special and token.content)
        texts = [added[number].content for number in self.ids]
        self._stand_ins = {text: chr(_FIRST + index) * len(text) for index, text in enumerate(texts)}
        self._texts = {chr(_FIRST + index): text for index, text in enumerate(texts)}
        # The longest first, as the tokenizer takes them too.
        ordered = sorted(texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)) if ordered else r"(?!)")
        self._hidden = re.compile(f"([{chr(_FIRST)}-{chr(_LAST)}])\\1*")

    def first_in(self, text: str) -> str | None:
        """The first special token that a text spells."""
        match = self._pattern.search(text)
        return match[0] if match else None

    def hide(self, conversation: Conversation) -> Conversation | None:
        """The conversation with a stand-in of the same length for each token it spells; None if there is none.

        Raises:
            UnusableRow: Its text holds the characters that stand in for them.
        """
        messages, tools = conversation.messages, conversation.tools
        plain = all(
            type(value) is str and self._pattern.search(value) is None
            for message in messages
            for value in message.values()
        )
        if plain and tools is None:
            return None
        hidden = conversation._replace(messages=self._replaced(messages), tools=self._replaced(tools))
        if hidden == conversation:
            return None
        if self._has_stand_in(messages) or self._has_stand_in(tools):
            raise UnusableRow(
                f"spells a special token of the model and holds characters of the private use area from "
                f"U+{_FIRST:X}: remove one of the two"
            )
        return hidden

    def show(self, text: str) -> tuple[str, list[Spelled]]:
        """A rendered text with its hidden tokens spelled again, and where they are.

        Raises:
            UnusableRow: The template cut through one of them.
        """
        spelled: list[Spelled] = []
        for match in self._hidden.finditer(text):
            token = self._texts[match[1]]
            if len(match[0]) % len(token):
                raise UnusableRow(f"spells the special token {token!r}, which the chat template cuts: remove it")
            spelled += [Spelled(start, token) for start in range(match.start(), match.end(), len(token))]
        return self._hidden.sub(self._spelled, text), spelled

    def _spelled(self, match: re.Match[str]) -> str:
        token = self._texts[match[1]]
        return token * (len(match[0]) // len(token))

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._pattern.sub(lambda match: self._stand_ins[match[0]], value)
        if isinstance(value, dict):
            return {self._replaced(key): self._replaced(item) for key, item in value.items()}
        return [self._replaced(item) for item in value] if isinstance(value, list) else value

    def _has_stand_in(self, value: Any) -> bool:
        if isinstance(value, str):
            return any(_FIRST <= ord(character) <= _LAST for character in value)
        if isinstance(value, dict):
            return any(self._has_stand_in(part) for item in value.items() for part in item)
        return isinstance(value, list) and any(self._has_stand_in(item) for item in value)
