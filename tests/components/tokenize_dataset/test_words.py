import functools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from components.tokenize_dataset import words
from components.tokenize_dataset.words import Words
from tests import assets


def small():
    """A vocabulary of bytes alone, which is read in a moment."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend.to_str()


SMALL = small()

TEXTS = [path.read_text(encoding="utf-8") for path in sorted(Path(words.__file__).parent.glob("[d-t]*.py"))]

PIECES = st.sampled_from(
    [
        *("a", "word", "It's", "WE'LL", "'ſ", "é", "Łódź", "“quoted”", "—", "…", "½", "²", "日本", "🙂", "\u0301"),
        *("3", "2026", " ", "  ", "\t", "\n", "\r\n", "\n\n ", "\x0b", "\x1c", "\x85", "\xa0", "\u2009", "\u2028"),
        *("\x00", "_", ".", "()", "<|im_start|>", "<|im_end|>", "<think>", "<|endoftext|>"),
    ]
)


@functools.cache
def pair(name):
    """A real tokenizer, bare, and its words."""
    backend = assets.tokenizer(name).backend_tokenizer
    return backend, Words(backend)


def assert_the_same(backend, known, texts):
    wanted = backend.encode_batch_fast(texts, add_special_tokens=False)
    num_found = 0
    for found, encoding in zip(known.ids(texts), wanted, strict=True):
        if found is not None:
            assert found.dtype == np.int32
            assert found.tolist() == encoding.ids
            num_found += 1
    return num_found


@pytest.mark.parametrize("name", ["smollm2", "gpt2", "qwen3"])
def test_real_texts_have_the_tokens_of_the_tokenizer(name):
    backend, known = pair(name)
    assert known.understood
    assert assert_the_same(backend, known, TEXTS) > len(TEXTS) / 2
    # And again, with all words known.
    assert assert_the_same(backend, known, TEXTS) > len(TEXTS) / 2


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(["smollm2", "gpt2", "qwen3"]), st.lists(PIECES | st.text(max_size=3), max_size=12))
def test_any_text_has_the_tokens_of_the_tokenizer(name, pieces):
    assert_the_same(*pair(name), ["".join(pieces)])


def test_every_pair_of_characters_of_the_alphabet():
    alphabet = [chr(code) for code in (*range(0x80), *words._BEYOND_ASCII)]
    for name in ("smollm2", "qwen3"):
        backend, known = pair(name)
        texts = [f"{one}{other} {one}'{other}\n{one}  {other}" for one in alphabet[::7] for other in alphabet[::5]]
        assert assert_the_same(backend, known, texts) == len(texts)


def test_what_is_beyond_the_alphabet_is_asked_of_the_tokenizer():
    _, known = pair("qwen3")
    (ids,) = known.ids(["plain, “quoted” and naïve"])
    assert ids is not None
    others = ["日本", "e\u0301", "a\xa0b", "ſ", "\u2028", "🙂", "\ud800"]
    assert known.ids(others) == [None] * len(others)


def test_a_sentencepiece_tokenizer_is_not_understood():
    _backend, known = pair("mistral")
    assert not known.understood
    assert known.ids(["a text"]) == [None]


@pytest.mark.parametrize(
    "steps",
    [
        [pre_tokenizers.ByteLevel(add_prefix_space=True)],
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)],
        [pre_tokenizers.Split("a", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)],
        [pre_tokenizers.WhitespaceSplit()],
        # What is cut here are no longer characters: the bytes of "é" and of many others are written as digits.
        [pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Digits(individual_digits=True)],
        # The sequence of which a word, found alone, need not be found as in a text; and dialects apart.
        *(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
            for pattern in (r"(?<=a)b|\p{L}|.", r"(a)|b|.", r"a$|.", r"a{2,}+|.", r"(?i)a|.", r"a(?!b)|\p{L}+")
        ),
    ],
)
def test_other_steps_are_not_understood(steps):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    assert not Words(backend).understood


def test_another_normalizer_or_model_is_not_understood():
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert Words(backend).understood
    backend.normalizer = normalizers.Lowercase()
    assert not Words(backend).understood
    assert not Words(Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))).understood


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


@functools.cache
def split_by(pattern):
    backend = Tokenizer.from_str(pair("gpt2")[0].to_str())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return backend, Words(backend)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from([LLAMA3, QWEN35]), st.lists(PIECES | st.text(max_size=3), max_size=12))
def test_the_words_of_llama_3_and_of_qwen_3_5(pattern, pieces):
    backend, known = split_by(pattern)
    assert known.understood
    assert_the_same(backend, known, ["".join(pieces), "12345 " + "".join(pieces)])


@pytest.mark.parametrize(
    "tokens",
    [
        [AddedToken("a ", lstrip=True)],
        [AddedToken("a ", rstrip=True)],
        [AddedToken("a", single_word=True)],
        # "abc": the one that is not normalized is found first, though it begins later.
        [AddedToken("ab", normalized=True), AddedToken("bc", normalized=False)],
        # Is looked for as "é".
        [AddedToken("e\u0301", normalized=True)],
    ],
)
def test_added_tokens_that_are_found_in_another_way_are_not_understood(tokens):
    backend = Tokenizer.from_str(pair("gpt2")[0].to_str())
    backend.add_tokens(tokens)
    assert not Words(backend).understood


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.text("ab ", min_size=1, max_size=3), max_size=4, unique=True),
    st.text("ab c\n", max_size=12),
    st.booleans(),
)
def test_added_tokens_that_overlap(contents, text, normalized):
    backend = Tokenizer.from_str(SMALL)
    backend.add_tokens([AddedToken(content, normalized=normalized) for content in contents])
    assert_the_same(backend, Words(backend), [text])


def test_digits_apart_as_some_tokenizers_have_them():
    backend = Tokenizer.from_str(pair("gpt2")[0].to_str())
    for individual in (True, False):
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=individual), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        known = Words(backend)
        assert known.understood
        texts = [*TEXTS, "a  12 b 3", " 4", "  5  ", "6'7", "½8", "9\n\n10"]
        assert assert_the_same(backend, known, texts) > len(texts) / 2


def test_few_words_are_remembered_and_no_long_ones(monkeypatch):
    backend, _ = pair("gpt2")
    known = Words(backend)
    known.ids([f"some words and {'x' * 100}"])
    assert list(map(len, sorted(known._known))) == [4, 6, 4]
    monkeypatch.setattr(words, "_MOST_WORDS", 10)
    assert_the_same(backend, known, TEXTS[:3])
    assert len(known._known) <= 10
