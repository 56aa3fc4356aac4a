import html
import re

import numpy as np
import pytest

from components.tokenize_dataset.spool import as_tokens
from components.tokenize_dataset.statistics import NUM_BINS, bin_of
from components.tokenize_dataset.statistics_page import Example
from components.tokenize_dataset.tokenize import tokenize
from tests.doubles.models import tiny_tokenizer


@pytest.fixture
def page(step_for, write_rows):
    """The page of two sources, one of which has rows that are dropped, cut and hostile."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    chats = [
        {
            "messages": [
                {"role": "user", "content": one},
                {"role": "assistant", "content": f"{one} b <script>{one}"},
            ]
        }
        for one in letters
    ]
    long = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b " * 60}]}
    rows = [*chats, chats[0], long, {"messages": "<img src=x>"}]
    sources = [
        {"source": str(write_rows(rows)), "name": "chats <b>"},
        {"source": str(write_rows([{"text": f"{one} a"} for one in letters], "texts.jsonl")), "name": "texts"},
    ]
    folder = tokenize(step_for(sources, max_malformed_rows=1))
    return (folder / "statistics.html").read_text()


def fact(page, label):
    return re.findall(rf"<dt>{label}</dt><dd>([^<]*)</dd>", page)


def test_it_says_what_became_of_every_source(page):
    assert fact(page, "Dropped: the same as an earlier row") == ["1"]
    assert fact(page, "Left out: has text in the column …[^<]*") == ["1"]
    assert fact(page, "Rows cut at the end") == ["1", "0"]
    train, held = (list(map(int, fact(page, label))) for label in ("To train on", "Held out"))
    assert [one + other for one, other in zip(train, held, strict=True)] == [27, 26]
    assert "OpenAI messages in the column &#39;messages&#39;" in page
    assert "plain text in the column &#39;text&#39;" in page
    assert page.count("<svg") == 2


def test_what_is_learned_is_marked(page):
    chat, text = re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)
    (marked,) = re.findall("<mark>(.*?)</mark>", chat, re.DOTALL)
    assert marked.endswith("&lt;|end|&gt;") and "assistant" not in marked
    assert "&lt;|user|&gt;" in chat.replace(marked, "")
    (marked,) = re.findall("<mark>(.*?)</mark>", text, re.DOTALL)
    assert html.unescape(marked).split()[-1] == "<|end|>"


def test_rows_and_names_are_escaped_and_nothing_is_loaded(page):
    assert (
        "<script" not in page and "<img" not in page and "<b>" not in page.replace("<b>512", "").split("<main>")[1]
    )
    assert "chats &lt;b&gt;" in page
    assert "default-src 'none'" in page
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)


def test_a_long_example_is_cut_and_says_so():
    ids = np.full(1000, 5, np.int32)
    labels = np.append(ids[1:], -100).astype(np.int32)
    example = Example.of(as_tokens(ids, labels), tiny_tokenizer())
    assert example.num_more == 400
    assert [piece.supervised for piece in example.pieces] == [False, True]
    assert "".join(piece.text for piece in example.pieces).count("a") == 600


def test_bins_are_half_a_power_of_two_wide():
    assert bin_of(np.array([1, 2, 3, 4, 5, 6, 1024, 2**31])).tolist() == [0, 2, 3, 4, 4, 5, 20, 62]
    assert bin_of(np.array([2**32 - 1])).max() < NUM_BINS
