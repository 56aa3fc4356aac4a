"""Tokens of texts, and which of them the assistant says."""

import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from components.tokenize_dataset.template import Marks, Span, Text
from components.tokenize_dataset.template_special import SpecialTokens, Spelled
from components.tokenize_dataset.words import Words

_PREFIX = "▁"
"""What SentencePiece vocabularies write for a space, and put before a text of their own accord."""


class Tokens(NamedTuple):
    """A text's tokens: ids int32 [tokens], and which are supervised, bool [tokens]."""

    ids: np.ndarray
    supervised: np.ndarray


class TokenizedRow(NamedTuple):
    """A row's texts, and what the model is asked, as `Encoded` has it."""

    texts: list[Tokens]
    prompt: dict[str, str] | None


@functools.lru_cache(maxsize=1)
def text_tokenizer(tokenizer: Any) -> "TextTokenizer":
    """The tokenizer for many texts at once; all sources of a run share it, and the words that it has seen.

    Args:
        tokenizer: A fast tokenizer, which is not changed from now on.
    """
    return TextTokenizer(tokenizer, SpecialTokens(tokenizer))


class TextTokenizer:
    """Tokenizes many texts at once, faster than the tokenizer's own call, to the same tokens.

    Args:
        tokenizer: A fast tokenizer.
        special: Its special tokens.
    """

    def __init__(self, tokenizer: Any, special: SpecialTokens) -> None:
        self._backend = _bare(tokenizer)
        self._words = Words(self._backend)
        self._is_special = np.zeros(self._backend.get_vocab_size(with_added_tokens=True) + 1, bool)
        self._is_special[special.ids] = True

    def ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, int32 [tokens]; special tokens that it spells are taken as such."""
        found = self._words.ids(texts)
        others = [text for text, ids in zip(texts, found, strict=True) if ids is None]
        encodings = iter(self._backend.encode_batch_fast(others, add_special_tokens=False))
        return [np.array(next(encodings).ids, np.int32) if ids is None else ids for ids in found]

    def continued(self, ids: np.ndarray, text: str) -> np.ndarray:
        """A text's ids as they stand after others: without a space that the tokenizer puts before every text."""
        first = (self._backend.id_to_token(int(ids[0])) or "") if len(ids) else ""
        if not first.startswith(_PREFIX) or text.startswith((" ", _PREFIX)):
            return ids
        rest = first.removeprefix(_PREFIX)
        if not rest:
            return ids[1:]
        without = self._backend.token_to_id(rest)
        return ids if without is None else np.concatenate([np.array([without], np.int32), ids[1:]])

    def rendered(self, texts: Sequence[Text], spelled: Sequence[Sequence[Spelled]], marks: Marks) -> list[Tokens]:
        """Tokens of rendered conversations.

        An answer begins with a token of its own, as it does when it is generated: where the tokenizer would join
        its first characters with the end of the prompt, or cut this end in another way, the two are tokenized
        apart.

        Args:
            texts: The texts.
            spelled: Of each text, the special tokens that are text in it.
            marks: What the template writes around an answer.
        """
        results: list[Tokens | None] = [None] * len(texts)
        marked = [i for i, text in enumerate(texts) if text.marks is not None and not spelled[i]]
        for i, tokens in zip(marked, self._between_marks([texts[i] for i in marked], marks), strict=True):
            results[i] = tokens
        others = [i for i, tokens in enumerate(results) if tokens is None]
        encodings = self._backend.encode_batch([texts[i].text for i in others], add_special_tokens=False)
        for i, encoding in zip(others, encodings, strict=True):
            results[i] = self._by_offsets(texts[i], encoding, spelled[i])
        return [tokens for tokens in results if tokens is not None]

    def _between_marks(self, texts: Sequence[Text], marks: Marks) -> list[Tokens | None]:
        """Tokens of texts whose answers stand between marks; None if these are not the same as in the text."""
        if not texts:
            return []
        before, end = self.ids([marks.before, marks.end])
        found = self.ids([text.text for text in texts])
        # All texts at once, as there are many short ones.
        ids = np.concatenate(found)
        edges = np.cumsum([0, *map(len, found)])
        (starts,) = np.nonzero(ids[: max(len(ids) - len(before) + 1, 0)] == before[0])
        starts = starts[(ids[starts[:, None] + np.arange(len(before))] == before).all(axis=1)] + len(before)
        # Not what the end of a text and the beginning of the next make together.
        text_of_begin = np.searchsorted(edges, starts - len(before), side="right")
        starts = starts[text_of_begin == np.searchsorted(edges, starts - 1, side="right")]
        special = np.append(np.nonzero(self._is_special[ids])[0], len(ids))
        ends = special[np.searchsorted(special, starts)]
        is_end = np.append(ids == end[0], False)[ends]
        first = np.searchsorted(starts, edges, side="right").tolist()
        supervised = np.zeros(len(ids), bool)
        results: list[Tokens | None] = []
        for number, text in enumerate(texts):
            own = slice(first[number], first[number + 1])
            answers = list(zip(starts[own].tolist(), ends[own].tolist(), is_end[own].tolist(), strict=True))
            part = slice(edges[number], edges[number + 1])
            assert text.marks is not None
            if len(answers) != text.text.count(marks.before) or not all(
                answers[mark][2] and answers[mark][1] < part.stop for mark in text.marks
            ):
                results.append(None)
                continue
            for mark in text.marks:
                start, stop, _ = answers[mark]
                supervised[start : stop + 1] = True
            results.append(Tokens(ids[part], supervised[part]))
        return results

    def _by_offsets(self, text: Text, encoding: Any, spelled: Sequence[Spelled]) -> Tokens:
        runs = [_run(encoding, span, len(text.text)) for span in text.spans]
        # Of white space, what follows may decide how it is cut, and after a prompt nothing does.
        is_open = any(start > 1 and text.text[start - 2 : start].isspace() for start, _ in text.spans)
        if spelled or is_open or None in runs:
            return self._by_parts(text, spelled)
        ids = np.array(encoding.ids, np.int32)
        supervised = np.zeros(len(ids), bool)
        for run in runs:
            supervised[run] = True
        return Tokens(ids, supervised)

    def _by_parts(self, text: Text, spelled: Sequence[Spelled]) -> Tokens:
        """Tokens of a text that is cut where an answer begins, and around what is spelled."""
        as_text = {token.start: token.start + len(token.text) for token in spelled}
        begins = {start for start, _ in text.spans}
        edges = sorted({0, len(text.text), *begins, *as_text, *as_text.values()})
        parts = [
            self._part(text.text[begin:end], begin, as_text=begin in as_text) for begin, end in pairwise(edges)
        ]
        ids, starts = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        supervised = np.zeros(len(ids), bool)
        for first, end in text.spans:
            supervised |= (starts >= first) & (starts < end)
        return Tokens(ids, supervised)

    def _part(self, text: str, begin: int, as_text: bool) -> tuple[np.ndarray, np.ndarray]:
        """Ids of a part that begins at a character of the whole, and each token's first character in the whole.

        Args:
            text: The part.
            begin: Its first character in the whole.
            as_text: Whether special tokens that it spells are text.
        """
        self._backend.encode_special_tokens = as_text
        try:
            encoding = self._backend.encode(text, add_special_tokens=False)
        finally:
            self._backend.encode_special_tokens = False
        ids = np.array(encoding.ids, np.int32)
        starts = np.array([start for start, _ in encoding.offsets], np.int64) + begin
        if begin:
            ids = self.continued(ids, text)
        return ids, starts[len(starts) - len(ids) :]


def _run(encoding: Any, span: Span, num_characters: int) -> slice | None:
    """The tokens that begin within a span; None if one begins before it and reaches into it, or cannot be told."""
    start, end = span
    first = encoding.char_to_token(start)
    if first is None or encoding.token_to_chars(first)[0] != start:
        return None
    if end == num_characters:
        return slice(first, len(encoding))
    after = encoding.char_to_token(end)
    if after is None:
        return None
    return slice(first, after + (encoding.token_to_chars(after)[0] < end))


def _bare(tokenizer: Any) -> Any:
    """The tokenizer's back end, copied if it has settings that would change ids or where they begin."""
    backend = tokenizer.backend_tokenizer
    # Some count the space before a word to no token.
    trims = backend.encode(" a", add_special_tokens=False).offsets[0][0] > 0
    if not trims and backend.padding is None and backend.truncation is None:
        return backend
    from tokenizers import Tokenizer

    backend = Tokenizer.from_str(backend.to_str())
    backend.no_padding()
    backend.no_truncation()
    # It is for tokens at the beginning and the end, which are added by name here.
    backend.post_processor = None
    return backend
