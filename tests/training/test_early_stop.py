"""A stop before there is anything to save."""

import signal
import subprocess
import sys
import time

import pytest

from training.errors import EXIT_INTERRUPTED

# As process 1 of a container, which does not die of a signal that it does not handle.
START = "import ctypes, signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


@pytest.fixture
def start():
    processes = []

    def start(code):
        process = subprocess.Popen([sys.executable, "-c", START + code], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout.readline() == "up\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_a_process_that_waits_for_others_leaves_at_once(start):
    process = start(
        "from training.early_stop import leave_at_once\nleave_at_once()\n"
        "print('up', flush=True)\nctypes.CDLL(None).sleep(60); ctypes.CDLL(None).sleep(60)"
    )
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == EXIT_INTERRUPTED and time.monotonic() - started < 5


def test_whoever_handles_the_signal_later_decides(start):
    process = start(
        "from training.early_stop import leave_at_once\nleave_at_once()\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nprint('up', flush=True)\n"
        "import time; time.sleep(60)"
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 7
