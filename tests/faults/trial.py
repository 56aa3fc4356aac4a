"""One run of the product on the suite's hosts, to inject a fault into."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tests.faults.hosts import Hosts
from training.events import TrainStep, read_events
from training.guard.beat import read_beats
from training.run_folder import RunFolder

T = TypeVar("T")

_PATIENCE_S = 180.0
"""For what takes seconds on a machine that does nothing else."""

_MEMORY_DISKS = ("/dev/shm", "/tmp")


class Trial:
    """A run under a supervisor that is a process of its own.

    Args:
        folder: The run's.
        hosts: Where its nodes run.
        variables: More environment of every node.
    """

    def __init__(self, folder: RunFolder, hosts: Hosts, **variables: str) -> None:
        self.folder = folder
        self.hosts = hosts
        self.log = folder.root / f"{folder.run}.log"
        self._variables = variables
        self.driver = self.drive()

    def drive(self) -> subprocess.Popen[bytes]:
        """Start a supervisor, as Kubeflow starts a step again."""
        variables = [f"{name}={value}" for name, value in self._variables.items()]
        command = [sys.executable, "-u", "-m", "tests.faults.drive", str(self.folder.path), str(self.hosts.folder)]
        with self.log.open("ab") as log:
            self.driver = subprocess.Popen(
                [*command, *variables], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        return self.driver

    def __enter__(self) -> "Trial":
        return self

    def __exit__(self, *error: object) -> None:
        self.driver.kill()
        self.driver.wait()
        for host in self.hosts:
            host.signal(signal.SIGKILL)

    def steps(self) -> list[TrainStep]:
        """Step events so far, of all attempts."""
        return [event for event in read_events(self.folder.events) if isinstance(event, TrainStep)]

    def wait_for_step(self, number: int, attempt: int = 1, timeout_s: float = _PATIENCE_S) -> None:
        """Wait until an attempt has made a step."""
        self.until(
            lambda: any(e.step >= number for e in self.steps() if e.attempt >= attempt),
            f"attempt {attempt} did not make step {number}",
            timeout_s,
        )

    def wait_for_checkpoint(self, step: int, timeout_s: float = _PATIENCE_S) -> Path:
        """Wait until a checkpoint of this step or a later one is sealed; its folder."""

        def sealed() -> list[Path]:
            found = self.folder.checkpoints.glob("step-*/manifest.json")
            return sorted(path.parent for path in found if int(path.parent.name.removeprefix("step-")) >= step)

        return self.until(sealed, f"no checkpoint of step {step}", timeout_s)[0]

    def until(self, condition: Callable[[], T], what: str, timeout_s: float = _PATIENCE_S) -> T:
        """Wait for a condition, as long as the supervisor lives; its value."""
        deadline = time.monotonic() + timeout_s
        while True:
            if result := condition():
                return result
            ended = self.driver.poll() is not None
            assert not ended and time.monotonic() < deadline, f"{what}\n{self.words()}"
            time.sleep(0.02)

    def end(self, timeout_s: float = 2 * _PATIENCE_S) -> int:
        """Wait for the supervisor's end; its exit code."""
        try:
            return self.driver.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run did not end in {timeout_s:.0f} s\n{self.words()}") from None

    def rank(self, number: int) -> psutil.Process:
        """The process of a rank, as its beats name it."""
        own = {process.pid for host in self.hosts for process in host.processes()}
        for disk in _MEMORY_DISKS:
            for folder in Path(disk).glob("shardline-beats-*"):
                for beat in read_beats(folder):
                    if beat.rank == number and beat.pid in own:
                        return psutil.Process(beat.pid)
        raise AssertionError(f"there is no rank {number} now\n{self.words()}")

    def node(self, number: int) -> psutil.Process:
        """The process of a node of the newest job."""
        newest = max((self.hosts.folder / "jobs").glob("*"), key=lambda path: path.stat().st_mtime)
        return psutil.Process(json.loads((newest / f"node-{number}.json").read_text())["pid"])

    def record(self, attempt: int) -> dict[str, Any]:
        """Of an attempt."""
        content: dict[str, Any] = json.loads((self.folder.attempt(attempt) / "attempt.json").read_text())
        return content

    def placed(self, attempt: int) -> dict[str, str]:
        """Node → host, in an attempt."""
        path = self.hosts.folder / "jobs" / self.record(attempt)["name"] / "placed.json"
        content: dict[str, str] = json.loads(path.read_text())
        return content

    def events(self, kind: str) -> list[Any]:
        """The run's events of a kind."""
        return [event for event in read_events(self.folder.events) if event.kind == kind]

    def words(self) -> str:
        """The ends of all logs, for a failure's message."""
        logs = [self.log, *sorted(self.folder.job_path.glob("attempts/*/*.log"))]
        return "\n".join(f"--- {path.name}\n" + _tail(path) for path in logs if path.is_file())


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-15:])
