"""Runs the graph on this machine, shows its progress, and stops it in good order on Ctrl-C."""

import contextlib
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import IO

from rich.console import Console
from rich.text import Text

from pipelines.processes import lock_run, stop_run
from pipelines.progress import ProgressView
from training.config import RunConfig
from training.errors import EXIT_FAILED, EXIT_INTERRUPTED, UserError
from training.events import EventReader
from training.run_folder import RunFolder, run_name_from_job
from training.store import Store, disk_errors

_POLL_S = 0.2


@dataclass(frozen=True)
class LocalRun:
    """A run that this process holds, so that no other process works on it.

    Attributes:
        folder: The run's folder.
        resumes: Whether the run was there before.
        lock: Holds the run as long as it is open.
    """

    folder: RunFolder
    resumes: bool
    lock: IO[bytes]


def check_interpreter() -> None:
    """Check that kfp can start the steps, which puts the interpreter's path into a shell script as it is.

    Raises:
        UserError: The path holds spaces or the like.
    """
    if shlex.quote(sys.executable) != sys.executable:
        raise UserError(
            f"the steps cannot be run by {sys.executable}: install Shardline under a path without spaces and "
            "special characters"
        )


def run_graph(run: LocalRun, recipe: str, overrides: list[str], console: Console, *, verbose: bool = False) -> int:
    """Run the graph to its end; returns an exit code.

    Args:
        run: The run, from `open_run` or `choose_run`.
        recipe: Name or path of the recipe.
        overrides: `section.field=value` strings.
        console: Where progress is shown.
        verbose: Show the steps' whole output instead of progress.

    Raises:
        UserError: The store cannot be written.
    """
    folder = run.folder
    with _store_errors(folder.root):
        folder.stop_request.unlink(missing_ok=True)
        # Microseconds, because a start may follow another within the second.
        work = folder.path / "pipeline" / datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        work.mkdir(parents=True)
        arguments = {
            "recipe": recipe,
            "overrides": json.dumps(overrides),
            "store": str(folder.root),
            "run": folder.run,
        }
        (work / "arguments.json").write_text(json.dumps(arguments, indent=1), encoding="utf-8")
        log = work / "pipeline.log"
        output = log.open("wb")
    reader = EventReader(folder.events)
    list(reader.poll())  # an earlier start of the same run has been shown
    with output:
        graph = subprocess.Popen(
            [sys.executable, "-m", "pipelines.local_graph", str(work / "arguments.json"), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            # Not this process's own output even if it is to be shown: that may go away before the graph does.
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_graph_environment(),
            # Ctrl-C reaches this process alone, which then stops the steps one by one.
            start_new_session=True,
        )
    stop = _StopRequest(folder, graph)
    # Whatever ends this block, a terminal that is gone or a pipe that broke, the graph must not go on unseen.
    with (
        stop.delivered_at_the_end(),
        ProgressView(console, quiet=verbose) as view,
        log.open(encoding="utf-8", errors="replace") as text,
    ):
        while True:
            ended = graph.poll() is not None
            if verbose:
                console.out(text.read(), end="", highlight=False)
            for event in reader.poll():
                view.show(event)
            if ended:
                break
            if stop.asked and stop.deliver():
                view.say("stopping: the running step saves and leaves …")
            time.sleep(_POLL_S)
    if stop.asked:
        return EXIT_INTERRUPTED
    if graph.returncode != 0:
        if not view.told_failure:
            view.say(Text("The pipeline failed, and no step said why.", style="red"))
        return EXIT_FAILED
    return 0


def open_run(store: Path, name: str) -> LocalRun:
    """Hold the run of this name, which begins if there is none.

    Raises:
        UserError: Another process works on it, or the store cannot be written.
    """
    run = _hold(RunFolder(store, name))
    if run is None:
        raise UserError(
            f"the run '{name}' is going on or stopping in another process: wait for its end or stop it, or give "
            "this run another name"
        )
    return run


def choose_run(store: Path, recipe: str, config: RunConfig, *, fresh: bool) -> LocalRun:
    """Hold the unfinished run of the same configuration that no other process works on, or a new one.

    Args:
        store: Root of the store.
        recipe: Name or path of the recipe; its stem begins the name.
        config: The resolved configuration.
        fresh: Always a new one.

    Raises:
        UserError: The store cannot be written.
    """
    base = run_name_from_job(Path(recipe).stem[:24])
    with _store_errors(store):
        runs = Store(store).root / "runs"
    if not fresh:
        for path in sorted(runs.glob(f"{base}-*"), reverse=True):
            if _is_unfinished(path, config) and (run := _hold(RunFolder.at(path))):
                return run
    return open_run(store, f"{base}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}")


def _hold(folder: RunFolder) -> LocalRun | None:
    with _store_errors(folder.root):
        resumes = folder.path.exists()
        folder.path.mkdir(parents=True, exist_ok=True)
        lock = lock_run(folder)
    return None if lock is None else LocalRun(folder, resumes, lock)


def _is_unfinished(path: Path, config: RunConfig) -> bool:
    try:
        folder = RunFolder.at(path)
        if not folder.config_file.is_file() or (folder.path / "registration.json").is_file():
            return False
        saved = folder.config()
    except (ValueError, OSError):
        return False  # no run's name, written by another version, or not ours to read
    # Preflight pins what was left open, so a pinned revision does not tell runs apart.
    for section in ("model", "data"):
        wanted = getattr(config, section).revision
        if wanted is None:
            getattr(saved, section).revision = None
    # Where it runs does not make it another run.
    return saved.model_copy(update={"cluster": config.cluster}) == config


@contextlib.contextmanager
def _store_errors(store: Path) -> Iterator[None]:
    try:
        with disk_errors(store):
            yield
    except FileNotFoundError as error:  # the system has places, like /proc, where no folder can be made
        raise UserError(f"the store {store} cannot be created there: choose another store") from error


def _graph_environment() -> dict[str, str]:
    return {
        **os.environ,
        # A file of the user's working folder, say random.py, is no module of the graph.
        "PYTHONSAFEPATH": "1",
        # The log can be followed, and holds whatever a step prints.
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8:backslashreplace",
    }


class _StopRequest:
    """Turns Ctrl-C, SIGTERM and the terminal's end into an orderly stop of the graph's running step."""

    def __init__(self, folder: RunFolder, graph: subprocess.Popen[bytes]) -> None:
        self.asked = False
        self._folder = folder
        self._graph = graph
        self._delivered = False
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        # Under nohup a run outlives its terminal.
        heard = [n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, self._ask) for number in heard}

    def _ask(self, signum: int, frame: FrameType | None) -> None:
        self.asked = True

    def deliver(self) -> bool:
        """Pass a stop on, once; returns whether this was the time."""
        if self._delivered:
            return False
        self._delivered = True
        stop_run(self._folder, self._graph.pid)
        return True

    @contextlib.contextmanager
    def delivered_at_the_end(self) -> Iterator[None]:
        """Leave the block only when the graph has ended: it is stopped if it still runs.

        After it, signals mean what they did before: a notebook's process goes on.
        """
        try:
            yield
        finally:
            if self._graph.poll() is None:
                self.deliver()
                self._graph.wait()
            for number, handler in self._handlers.items():
                signal.signal(number, handler or signal.SIG_DFL)
