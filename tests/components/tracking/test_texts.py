"""Names and texts as MLflow takes them."""

import pytest
from mlflow.utils.validation import _validate_metric_name

from components.tracking.texts import TEXT_LENGTH, safe_name, shortened, shortened_card


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("arc_easy/acc", "arc_easy/acc"),
        ("gsm8k/exact_match,strict", "gsm8k/exact_match_strict"),
        ("s3://bucket/a.jsonl", "s3_/bucket/a.jsonl"),
        ("../data/./a b.jsonl", "data/a b.jsonl"),
        ("/", "_"),
        ("données/数据", "données/数据"),
    ],
)
def test_a_name_that_mlflow_takes(text: str, name: str) -> None:
    assert safe_name(text) == name
    _validate_metric_name(f"interval/source/{name}/champion_loss_high")


def test_long_names_keep_their_end_and_stay_apart() -> None:
    names = {safe_name(f"{first}{'/x' * 300}/end.jsonl") for first in "ab"}
    assert len(names) == 2
    for name in names:
        assert name.endswith("/x/end.jsonl")
        _validate_metric_name(f"interval/source/{name}/champion_loss_high")


def test_a_text_of_the_length_that_is_allowed_stays() -> None:
    for cut in (shortened, shortened_card):
        assert cut("x" * TEXT_LENGTH) == "x" * TEXT_LENGTH
        assert len(cut("x\n" * TEXT_LENGTH)) <= TEXT_LENGTH
    assert shortened("xyz", 2) == "x…"
    assert shortened_card("line\n" * TEXT_LENGTH).endswith(
        "line\n\n… the rest is in the README.md among the version's files."
    )
