"""The same cause has the same fingerprint, and another cause another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.jobs.fingerprint import normalised, of_error, of_hang

TRACE = """Traceback (most recent call last):
  File "/opt/{venv}/lib/python3.11/site-packages/training/worker.py", line {line}, in main
    finished = _run(folder)
  File "/opt/{venv}/lib/python3.11/site-packages/training/{file}.py", line 12, in {function}
    ~~~~^^^
{message}
"""


def trace(message, venv="venv", line=7, file="data", function="read"):
    return TRACE.format(venv=venv, line=line, file=file, function=function, message=message)


@given(
    st.integers(0, 10**9),
    st.integers(0, 2**48),
    st.integers(1, 999),
    st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True),
)
def test_numbers_addresses_and_folders_do_not_matter(number, address, line, run):
    def mark(number, address, line, run):
        where = f"/store/runs/{run}/inputs at {address:#x} of 10.0.0.{number % 256}:{line}"
        message = f"OSError: cannot read {where}, {number}"
        return of_error(message, trace(message, venv=f"v{number}", line=line))

    assert mark(number, address, line, run) == mark(1, 2, 3, "r")


@pytest.mark.parametrize(
    "message, place",
    [
        ("ValueError: bad", {}),
        ("KeyError: 'bad'", {}),
        ("ValueError: worse", {}),
        ("ValueError: bad", {"function": "write"}),
        ("ValueError: bad", {"file": "model"}),
    ],
)
def test_type_frame_and_words_matter(message, place):
    other = of_error("ValueError: bad", trace("ValueError: bad"))
    assert (of_error(message, trace(message, **place)) == other) is (message == "ValueError: bad" and not place)


def test_it_is_short_and_legible():
    message = "ArrowInvalid: Not an Arrow file" + " x" * 500
    mark = of_error(message, trace(message))
    assert mark.startswith("ArrowInvalid@training/data.py:read Not an Arrow file") and len(mark) < 250
    assert of_error("RuntimeError: no trace", "") == "RuntimeError@ no trace"
    assert normalised("first 3.5e-7\nsecond") == "first #"


def test_a_hang_is_known_by_its_part():
    words = "rank 3 was silent for 30 s (in 'forward' of step 12), and resilience.hang_timeout_s is 20"
    assert of_hang(words) == of_hang(words.replace("rank 3", "rank 1").replace("12", "99")) == "hang:forward"
    assert of_hang("rank 3 was silent for 30 s (load)") == "hang:outside of a step"
