"""Runs the graph on this machine, shows its progress, and stops it in good order on Ctrl-C."""

import json
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil
from rich.console import Console
from rich.markup import escape

from pipelines.progress import ProgressView
from training.config import RunConfig
from training.errors import EXIT_FAILED, EXIT_INTERRUPTED
from training.events import EventReader
from training.run_folder import RunFolder
from training.store import Store

_POLL_S = 0.2


@dataclass(frozen=True)
class LocalRun:
    """What to run.

    Attributes:
        recipe: Name or path of the recipe.
        overrides: `section.field=value` strings.
        store: Root of the store.
        run: The run's name.
    """

    recipe: str
    overrides: list[str]
    store: Path
    run: str


def run_graph(what: LocalRun, console: Console, *, verbose: bool = False) -> int:
    """Run the graph to its end; returns an exit code.

    Args:
        what: Recipe, overrides, store and name.
        console: Where progress is shown.
        verbose: Show the steps' whole output instead of progress.
    """
    folder = RunFolder(what.store, what.run)
    folder.stop_request.unlink(missing_ok=True)
    work = folder.path / "pipeline" / time.strftime("%Y%m%d-%H%M%S")
    work.mkdir(parents=True)
    arguments = {
        "recipe": what.recipe,
        "overrides": "\n".join(what.overrides),
        "store": str(folder.root),
        "run": what.run,
    }
    (work / "arguments.json").write_text(json.dumps(arguments, indent=1))
    log = work / "pipeline.log"
    reader = EventReader(folder.events)
    list(reader.poll())  # an earlier start of the same run has been shown
    with log.open("wb") as output:
        graph = subprocess.Popen(
            [sys.executable, "-m", "pipelines.local_graph", str(work / "arguments.json")],
            stdin=subprocess.DEVNULL,
            stdout=None if verbose else output,
            stderr=subprocess.STDOUT if not verbose else None,
            # Ctrl-C reaches this process alone, which then stops the steps one by one.
            start_new_session=True,
        )
    stop = _StopRequest(folder, graph)
    with ProgressView(console, quiet=verbose) as view:
        while True:
            ended = graph.poll() is not None
            for event in reader.poll():
                view.show(event)
            if ended:
                break
            stop.deliver(view)
            time.sleep(_POLL_S)
    if stop.asked:
        return EXIT_INTERRUPTED
    if graph.returncode != 0:
        if not view.told_failure:
            console.print(f"[red]The pipeline failed.[/red] Its log: {escape(str(log))}", highlight=False)
        return EXIT_FAILED
    return 0


def choose_run(store: Path, recipe: str, config: RunConfig, *, fresh: bool) -> tuple[str, bool]:
    """Name a run: the unfinished one of the same configuration, or a new one.

    Args:
        store: Root of the store.
        recipe: Name or path of the recipe; its stem begins the name.
        config: The resolved configuration.
        fresh: Always a new one.

    Returns:
        The name, and whether that run exists.
    """
    base = "".join(c if c.isalnum() else "-" for c in Path(recipe).stem.lower()).strip("-")[:24] or "run"
    if not base[0].isalpha():
        base = f"r-{base}"
    runs = Store(store).root / "runs"
    if not fresh:
        for path in sorted(runs.glob(f"{base}-*"), reverse=True):
            if _is_unfinished(path, config):
                return path.name, True
    return f"{base}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}", False


def _is_unfinished(path: Path, config: RunConfig) -> bool:
    folder = RunFolder.at(path)
    if not folder.config_file.is_file() or (folder.path / "registration.json").is_file():
        return False
    try:
        saved = folder.config()
    except ValueError:
        return False  # written by another version
    # Preflight pins what was left open, so a pinned revision does not tell runs apart.
    for section in ("model", "data"):
        wanted = getattr(config, section).revision
        if wanted is None:
            getattr(saved, section).revision = None
    return saved == config


class _StopRequest:
    """Turns Ctrl-C and SIGTERM into an orderly stop of the graph's running step."""

    def __init__(self, folder: RunFolder, graph: subprocess.Popen[bytes]) -> None:
        self.asked = False
        self._folder = folder
        self._graph = graph
        self._delivered = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, signum: int, frame: FrameType | None) -> None:
        self.asked = True

    def deliver(self, view: ProgressView) -> None:
        """Pass a stop on, once: no further step begins, and the running one saves and leaves."""
        if not self.asked or self._delivered:
            return
        self._delivered = True
        view.say("stopping: the running step saves and leaves …")
        self._folder.stop_request.touch()
        for process in _running_steps(self._graph.pid):
            process.terminate()


def _running_steps(graph_pid: int) -> list[psutil.Process]:
    """The Python process of the step that runs; the shell around it passes its exit code on."""
    steps = []
    for process in psutil.Process(graph_pid).children(recursive=True):
        try:
            is_step = "kfp.dsl.executor_main" in process.cmdline() and "python" in process.name()
        except psutil.NoSuchProcess:
            continue
        if is_step:
            steps.append(process)
    return steps
