"""The gate, case by case."""

import pytest

from components.register_model.gate import Champion, judge

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("base", "tuned", "min_improvement", "champion", "passed"),
    [
        pytest.param(2.5, 2.0, 0.0, None, True, id="lower"),
        pytest.param(2.5, 2.5, 0.0, None, False, id="equal"),
        pytest.param(2.5, 2.6, 0.0, None, False, id="higher"),
        pytest.param(2.5, 2.3, 0.1, None, True, id="lower-by-more"),
        pytest.param(2.5, 2.4, 0.1, None, False, id="lower-by-exactly-the-threshold"),
        pytest.param(0.3, 0.2, 0.1, None, False, id="exactly-the-threshold-below-one"),
        pytest.param(2.5, 2.45, 0.1, None, False, id="lower-by-less"),
        pytest.param(2.5, 2.0, 0.0, Champion("1", 2.1), True, id="better-than-champion"),
        pytest.param(2.5, 2.0, 0.0, Champion("1", 2.0), True, id="equal-to-champion"),
        pytest.param(2.5, 2.0, 0.0, Champion("1", 1.999999), False, id="worse-than-champion"),
        pytest.param(2.5, 2.4, 0.0, Champion("1", None), True, id="champion-on-other-data"),
        pytest.param(2.5, 2.4, 0.0, Champion("1", NAN), True, id="champion-without-a-number"),
        pytest.param(2.5, 2.6, 0.0, Champion("1", 3.0), False, id="better-than-champion-but-not-base"),
        pytest.param(2.5, NAN, 0.0, None, False, id="tuned-nan"),
        pytest.param(2.5, INF, 0.0, None, False, id="tuned-inf"),
        pytest.param(2.5, -INF, 0.0, None, False, id="tuned-minus-inf"),
        pytest.param(NAN, 2.0, 0.0, None, False, id="base-nan"),
        pytest.param(INF, 2.0, 0.0, None, False, id="base-inf"),
        pytest.param(2.5, NAN, 0.0, Champion("1", NAN), False, id="nan-everywhere"),
    ],
)
def test_verdict(
    base: float, tuned: float, min_improvement: float, champion: Champion | None, passed: bool
) -> None:
    verdict = judge(base, tuned, min_improvement, champion)
    assert verdict.passed is passed
    assert verdict.reasons
    assert all(reason[0].isupper() and reason.endswith(".") for reason in verdict.reasons)


def test_reasons_name_losses_and_versions() -> None:
    verdict = judge(2.5, 2.25, 0.1, Champion("7", 2.125))
    assert verdict.reasons == (
        "The held-out loss fell from 2.5 to 2.25, by more than the 0.1 that registry.min_improvement asks for.",
        "The held-out loss 2.25 is higher than the 2.125 of version 7, which holds the alias.",
    )
