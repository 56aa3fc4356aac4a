"""Runs a command and writes down its end: what a kubelet is to a container.

It is started by its path, with the standard library alone, so that it costs next to nothing.
"""

import json
import os
import signal
import subprocess
import sys
import time


def main(state: str, suite: int, command: list[str]) -> None:
    """Run a command to its end.

    Args:
        state: File for its pid and, at the end, its exit code.
        suite: Pid of the suite; when that is gone, so is the command.
        command: What to run.
    """
    process = subprocess.Popen(command, start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    _write(state, {"pid": process.pid, "agent": os.getpid()})
    while (code := process.poll()) is None:
        time.sleep(0.05)
        if not os.path.exists(f"/proc/{suite}"):  # noqa: PTH110 - pathlib is slow to import
            os.killpg(process.pid, signal.SIGKILL)
    _write(state, {"pid": process.pid, "exit_code": code if code >= 0 else 128 - code, "ended": time.time()})


def _write(path: str, content: dict) -> None:
    with open(f"{path}.new", "w") as file:  # noqa: PTH123
        json.dump(content, file)
    os.replace(f"{path}.new", path)  # noqa: PTH105


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
