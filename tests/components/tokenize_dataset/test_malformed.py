import pytest

from components.tokenize_dataset.malformed import reason_of
from components.tokenize_dataset.read import Reading
from training.sources.rows import Malformed


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ("is not valid JSON (Expecting value at character 12): each record has to be one", "is not valid JSON"),
        ("has an empty answer in message 3: add it, or remove the row", "has an empty answer in message …"),
        (
            "has the role 'it\\'s: (1)' in message 1, but the roles are user",
            "has the role … in message …, but the roles are user",
        ),
        ('has the role "it\'s" in message 1,234', "has the role … in message …"),
        ("is a JSON list: each record has to be one JSON object", "is a JSON list"),
        ("is the user's own", "is the user's own"),
    ],
)
def test_a_reason_has_no_particulars(problem, reason):
    assert reason_of(problem) == reason


def test_reasons_are_counted_and_only_so_many_are_told_apart():
    reading = Reading()
    for number in range(1000):
        reading.leave_out(Malformed(f"line {number}", f"has the value x{number}x"))
    assert sum(reading.left_out.values()) == 1000
    assert len(reading.left_out) == 21
    assert reading.left_out["is wrong in yet other ways"] == 980
    assert len(reading.named) == 10
