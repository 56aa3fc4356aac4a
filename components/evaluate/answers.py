"""How near a model's answers come to the references: exact match, and ROUGE-L."""

import re
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

from training.measure.measured import Answer

# Scripts without blanks between words: each character is a word.
_WORD = re.compile(r"[぀-ヿ㐀-䶿一-鿿가-힯豈-﫿]|[^\W぀-ヿ㐀-䶿一-鿿가-힯豈-﫿]+")

_THOUGHT, _END_OF_THOUGHT = "<think>", "</think>"
"""What some models write before they answer; of some the first stands in the prompt."""


def answer_scores(answers: Sequence[Answer]) -> dict[str, np.ndarray]:
    """Scores of the answers that are to be scored, by the names of `training.config.ANSWER_MEASURES`.

    `exact_match` is 1 for an answer that is the reference after Unicode normalisation (NFKC), without regard to
    case, to how much white space stands where, and to a full stop at the end; else 0. `rougeL` is the F-measure
    of the longest common subsequence of words, from 0 to 1. Thoughts (`<think>…</think>`) before an answer are not
    a part of it.

    Args:
        answers: Of one model.

    Returns:
        float64 [scored answers] each; empty if no answer is to be scored.
    """
    scored = [answer for answer in answers if answer.is_scored]
    if not scored:
        return {}
    # Here, because it takes seconds, and text asks nothing.
    from rouge_score.rouge_scorer import RougeScorer

    rouge = RougeScorer(["rougeL"], tokenizer=_Words())
    measures: dict[str, Callable[[Answer], float]] = {
        "exact_match": lambda a: float(_normalised(_said(a.answer)) == _normalised(_said(a.reference))),
        "rougeL": lambda a: float(rouge.score(_said(a.reference), _said(a.answer))["rougeL"].fmeasure),
    }
    return {name: np.array([measure(answer) for answer in scored]) for name, measure in measures.items()}


def _said(text: str) -> str:
    before, end, after = text.partition(_END_OF_THOUGHT)
    if end:
        return after
    # A thought that was not ended takes up the whole answer.
    return "" if before.lstrip().startswith(_THOUGHT) else before


def _normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).removesuffix(".")


class _Words:
    """Words of any script; the package's own tokenizer knows a to z only."""

    def tokenize(self, text: str) -> list[str]:
        return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
