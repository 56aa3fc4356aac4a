"""Tokens of texts, word by word, for tokenizers whose words are known: several times faster than theirs."""

import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

_MOST_WORDS = 1 << 17
"""Words that are remembered; some 25 MiB."""

_LONGEST_WORD = 64
"""Characters of a word that is remembered: longer ones seldom come again."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How the pre-tokenizer ByteLevel finds words."""

_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = frozenset(
    {
        _GPT2,
        # Llama 3 and its like, Qwen2 to Qwen3, and Qwen3.5, which counts marks to letters.
        rf"{_WORD}|\p{{N}}{{1,3}}|{_REST}",
        rf"{_WORD}|\p{{N}}|{_REST}",
        rf"{_WORD}|\p{{N}}|{_REST}".replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(
            r"\s\p{L}\p{N}", r"\s\p{L}\p{M}\p{N}"
        ),
    }
)
"""Expressions that other tokenizers find words by. Of each it holds that a word is found alone as it is in a text:
none looks behind, and only of white space is asked what follows. Of any other it would have to be shown."""

_BEYOND_ASCII = [*range(0xA1, 0x17F), *range(0x180, 0x250), *range(0x2010, 0x2028), *range(0x2030, 0x205F)]
"""Characters beyond ASCII that every version of Unicode takes for the same: Latin letters and punctuation. White
space is left out, and so is the long s, which is an s where case does not count."""


class Words:
    """Looks the words of a text up in what the tokenizer made of them before.

    A tokenizer with byte pair encoding cuts a text into words by a regular expression and encodes each alone, so
    what it makes of a word is always the same. Finding words again costs it most of its time, and Python little.

    Args:
        backend: The tokenizer, of the library tokenizers. It may be asked while this is used, not changed.

    Attributes:
        understood: Whether the tokenizer's words can be found here. If not, `ids` knows no text.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        described = json.loads(backend.to_str())
        added = described["added_tokens"]
        steps = _steps(described) if _are_found_first(added) else None
        self.understood = steps is not None
        self._steps = [re.compile(_spelled_out(step)).findall for step in steps or []]
        self._foreign = re.compile(f"[^\x00-\x7f{_as_class(_BEYOND_ASCII)}]")
        contents = sorted((token["content"] for token in added), key=len, reverse=True)
        self._added = re.compile(f"({'|'.join(map(re.escape, contents))})" if contents else "((?!))")
        self._known: dict[str, bytes] = {}  # ids as int32, as joining bytes takes half as long as integers

    def ids(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        """The ids of each text, added tokens included, int32 [tokens]; None if the tokenizer has to be asked."""
        if not self.understood:
            return [None] * len(texts)
        words = [self._split(text) for text in texts]
        known = self._known
        new = list(set(itertools.chain.from_iterable(some for some in words if some is not None)) - known.keys())
        for word, encoding in zip(
            new, self._backend.encode_batch_fast(new, add_special_tokens=False), strict=True
        ):
            known[word] = np.array(encoding.ids, np.int32).tobytes()
        found = [
            None if some is None else np.frombuffer(b"".join(map(known.__getitem__, some)), np.int32)
            for some in words
        ]
        for word in new:
            if len(word) > _LONGEST_WORD:
                del known[word]
        if len(known) > _MOST_WORDS:
            known.clear()
        return found

    def _split(self, text: str) -> list[str] | None:
        """The words of a text; None if it has a character or a part that is unknown here."""
        if not text.isascii() and self._foreign.search(text):
            return None
        words: list[str] = []
        for number, part in enumerate(self._added.split(text)):
            # Every second part is an added token, which is a word of its own.
            if number % 2:
                words.append(part)
            elif part:
                words += self._words(part)
        return words if len("".join(words)) == len(text) else None

    def _words(self, text: str) -> list[str]:
        pieces = [text]
        for find in self._steps:
            pieces = find(text) if len(pieces) == 1 else _each(find, pieces)
            if len(pieces) == 1:
                (text,) = pieces
        return pieces


def _each(find: Callable[[str], list[str]], pieces: list[str]) -> list[str]:
    return list(itertools.chain.from_iterable(map(find, pieces)))


def _are_found_first(added: Sequence[Mapping[str, Any]]) -> bool:
    """Whether added tokens are found by what they say alone, all at once, and before the words."""
    return (
        not any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in added)
        # Those that are looked for in the normalized text are found after the others.
        and len({token["normalized"] for token in added}) <= 1
        and all(token["content"] and unicodedata.is_normalized("NFC", token["content"]) for token in added)
    )


def _steps(described: Mapping[str, Any]) -> list[str] | None:
    """Expressions that cut a text into words, each cutting the words of the one before; None for others."""
    model, normalizer, pre_tokenizer = (described[key] for key in ("model", "normalizer", "pre_tokenizer"))
    if model["type"] != "BPE" or model.get("dropout") or pre_tokenizer is None:
        return None
    # Composed characters are what the alphabet here consists of.
    if normalizer is not None and normalizer["type"] != "NFC":
        return None
    # The bytes come last: what would be cut after them are no longer the text's characters.
    match pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]:
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            return [_GPT2]
        case [
            {"type": "Digits", "individual_digits": bool(individual)},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        ]:
            return [r"\p{N}|[^\p{N}]+" if individual else r"\p{N}+|[^\p{N}]+", _GPT2]
        case [
            {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ] if pattern in _SPLITS:
            return [pattern]
    return None


def _spelled_out(pattern: str) -> str:
    """An expression with its classes of characters spelled out for the alphabet, in Python's dialect."""

    def spelled_out(match: re.Match[str]) -> str:
        # No mark is in the alphabet.
        classes = {r"\p{L}": _of_category("L"), r"\p{N}": _of_category("N"), r"\p{M}": "", r"\s": r" \t-\r"}
        inside = match[0].strip("[]")
        for name, characters in classes.items():
            inside = inside.replace(name, characters)
        return f"[{inside}]"

    return re.sub(r"\[[^]]*\]|\\p\{\w\}|\\s", spelled_out, pattern.replace(r"\S", r"[^\s]"))


def _of_category(letter: str) -> str:
    alphabet = [*range(0x80), *_BEYOND_ASCII]
    return _as_class([code for code in alphabet if unicodedata.category(chr(code)).startswith(letter)])


def _as_class(codes: list[int]) -> str:
    """Codes, ascending, as ranges within brackets."""
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in ranges)
