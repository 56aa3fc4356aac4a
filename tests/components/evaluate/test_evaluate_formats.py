"""Figures for people."""

import pytest

from components.evaluate.formats import (
    as_change,
    as_duration,
    as_percent,
    as_perplexity,
    as_rate,
    as_tflops,
    as_tick,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (as_perplexity(9.123), "9.12"),
        (as_perplexity(24.78), "24.8"),
        (as_perplexity(1240.4), "1,240"),
        (as_perplexity(3.2e8), "3.2e+08"),
        (as_change(-1.0034), "−1.003"),
        (as_change(0.5), "+0.500"),
        (as_change(-0.0001), "0.000"),
        (as_percent(0.0402), "4.0\N{NO-BREAK SPACE}%"),
        (as_percent(0.314), "31\N{NO-BREAK SPACE}%"),
        (as_percent(0.00021), "0.021\N{NO-BREAK SPACE}%"),
        (as_percent(0), "0\N{NO-BREAK SPACE}%"),
        (as_duration(3.21), "3.2 s"),
        (as_duration(192), "3 min 12 s"),
        (as_duration(7500), "2 h 5 min"),
        (as_rate(2e-5), "2e-5"),
        (as_rate(1.9e-4), "1.9e-4"),
        (as_rate(0), "0"),
        (as_tick(200_000), "200k"),
        (as_tick(0.5), "0.5"),
        (as_tflops(411.7), "412"),
        (as_tflops(41.23), "41.2"),
        (as_tflops(0.03123), "0.0312"),
    ],
)
def test_figures_for_people(text, expected):
    assert text == expected
