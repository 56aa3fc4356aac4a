"""Exact match and ROUGE-L of answers, by hand."""

import pytest

from components.evaluate.answers import answer_scores
from training.config import ANSWER_MEASURES
from training.measure.measured import Answer


def scores(answer, reference):
    found = answer_scores([Answer("q", reference, answer, "", is_shown=False, is_scored=True)])
    assert tuple(found) == ANSWER_MEASURES
    return found["exact_match"].item(), found["rougeL"].item()


@pytest.mark.parametrize(
    ("answer", "reference", "exact", "rouge"),
    [
        ("Set the seed.", "Set the seed.", 1, 1),
        ("  set THE\n seed", "Set the seed.", 1, 1),
        ("ﬁne", "fine", 1, 1),
        ("1.5", "1.5.", 1, 1),
        # Longest common subsequence "the cat sat": 3 of 4 words, 3 of 3.
        ("the cat then sat", "The cat sat", 0, 6 / 7),
        ("sat cat the", "the cat sat", 0, 1 / 3),
        ("", "the cat", 0, 0),
        ("", "", 1, 0),
        ("<think>\n\n</think>\n\nthe cat", "the cat", 1, 1),
        ("<think>the cat", "the cat", 0, 0),
        ("a dog?</think>the cat", "the cat", 1, 1),
        ("the cat", "<think>a dog?</think>the cat", 1, 1),
        # The package's own tokenizer would find no word in either.
        ("Größe über alles", "größe unter alles", 0, 2 / 3),
        ("我喜欢猫", "我喜欢狗", 0, 3 / 4),
    ],
)
def test_by_hand(answer, reference, exact, rouge):
    assert scores(answer, reference) == (exact, pytest.approx(rouge))


def test_only_what_is_to_be_scored_counts():
    answers = [Answer("q", "r", "r", "", is_shown=True, is_scored=scored) for scored in (False, True, True)]
    assert len(answer_scores(answers)["rougeL"]) == 2
    assert answer_scores(answers[:1]) == {}
