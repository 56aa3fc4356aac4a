"""Printing to a log whose disk hangs, or is full."""

import os
import subprocess
import sys
import time
from pathlib import Path

from training.background_lines import BackgroundLines

_PRINT = """
import sys, time
from training.background_lines import BackgroundLines
lines = BackgroundLines(most_waiting=10)
began = time.monotonic()
for number in range(100):
    lines.print("x" * 2**18)  # more than a pipe takes
is_flushed = lines.flush(0.5)
print(is_flushed, time.monotonic() - began < 30, file=sys.stderr)
sys.stderr.flush()
import os; os._exit(0)
"""


def test_lines_come_in_their_order(capsys):
    lines = BackgroundLines()
    for number in range(50):
        lines.print(f"line {number}")
    assert lines.flush(20)
    assert capsys.readouterr().out.splitlines() == [f"line {number}" for number in range(50)]


def test_a_log_that_takes_nothing_any_more_holds_nobody_up():
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PRINT], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert done.stderr.split() == ["False", "True"]


def test_a_full_disk_is_no_error_of_the_training():
    with Path("/dev/full").open("w") as full:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", _PRINT], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.stderr.split() == ["True", "True"] and time.monotonic() - began < 60
