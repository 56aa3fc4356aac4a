"""Runs a command that may hang for good: in the driver, or in a disk that does not answer."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """What a command came to.

    Attributes:
        code: Exit code; None, if it did not end in time.
        output: What it wrote.
        errors: What it wrote to its standard error.
    """

    code: int | None
    output: str
    errors: str


def ask(command: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None) -> Answer:
    """Run a command; one that does not end in time is killed, with all it started, and left to itself.

    A process that waits for hardware in the kernel does not end even when it is killed, so nothing waits for it
    (as `subprocess.run` would).

    Args:
        command: With its arguments.
        timeout_s: Seconds that it may take.
        env: Its whole environment; None: of this process.

    Raises:
        OSError: There is no such command.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=env,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return Answer(None, "", "")
    return Answer(process.returncode, output, errors)
