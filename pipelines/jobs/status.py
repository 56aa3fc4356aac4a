"""Shows the state of runs: once, as a live table, or line by line where there is no terminal."""

import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from pipelines.jobs.model import RunView
from pipelines.jobs.table import TABLE_WIDTH, change_lines, run_table, runs_as_lines, runs_table
from pipelines.jobs.terminal import connect, folder_in, folder_of_environment
from training.ledger import Ledger, goodput_line
from training.run_folder import RunFolder

_WIDE = 300


def show_runs(namespace: str, store: Path | None) -> None:
    """Print a table of all runs, in a store if one is named, else of a cluster.

    Raises:
        UserError: There is no cluster, or it does not let the user look.
        ClusterUnavailable: It does not answer.
    """
    if store is not None:
        from pipelines.jobs.store import view_stored_runs

        views, where = view_stored_runs(store.expanduser().absolute()), f"the store {store}"
    else:
        from pipelines.jobs.view import view_runs

        cluster = connect("", namespace)
        views, where = view_runs(cluster), f"the namespace '{cluster.namespace}' ({cluster.where})"
    if views:
        console, now = _console(), time.time()
        narrow = console.width < TABLE_WIDTH
        console.print(runs_as_lines(views, now) if narrow else runs_table(views, now))
    else:
        print(f"There are no runs in {where}.")


def show_run(run: str, namespace: str, store: Path | None, host: str = "") -> None:
    """Print a run's attempts as they are now; before the first, what Kubeflow Pipelines knows of the run.

    Raises:
        UserError: There is no such run; the message names those that there are.
        ClusterUnavailable: The cluster does not answer.
    """
    if folder := _stored(run, store):
        from pipelines.jobs.store import view_stored_run

        view = view_stored_run(folder)
    else:
        from pipelines.jobs.submitted import view_known_run

        view = view_known_run(connect(run, namespace), run, host, namespace)
    console = _console()
    console.print(_shown(view, console))
    _print_goodput(console, folder)


def follow_run(run: str, namespace: str, store: Path | None, host: str = "") -> bool:
    """Show a run until its newest attempt has ended, or it has ended before one; returns whether it succeeded.

    Raises:
        UserError: There is no such run; the message names those that there are.
        ClusterUnavailable: The cluster has not answered for long.
    """
    views: Iterator[RunView]
    if folder := _stored(run, store):
        from pipelines.jobs.store import watch_stored_run

        views = watch_stored_run(folder)
    else:
        from pipelines.jobs.submitted import watch_known_run

        views = watch_known_run(connect(run, namespace), run, host, namespace)
    console = _console()
    last = _follow_live(console, views) if console.is_terminal else _follow_lines(views)
    _print_goodput(console, folder)
    return bool(last.succeeded)


def _stored(run: str, store: Path | None) -> RunFolder | None:
    """The folder to look at: in the store that is named, or in that of the environment if it has the run."""
    if store is not None:
        return folder_in(store, run)
    folder = folder_of_environment(run)
    return folder if folder is not None and folder.events.is_dir() else None


def _print_goodput(console: Console, folder: RunFolder | None) -> None:
    """What a run's time went into, where its folder can be read."""
    if folder is not None and (totals := Ledger.of(folder).totals) is not None:
        console.print(Text(goodput_line(totals), style="dim"))


def _follow_live(console: Console, views: Iterator[RunView]) -> RunView:
    newest = next(views)
    # Drawn anew every second, because ages and what is left change by themselves.
    with Live(console=console, get_renderable=lambda: _shown(newest, console), refresh_per_second=1):
        for view in views:
            newest = view
    return newest


def _shown(view: RunView, console: Console) -> RenderableType:
    now = time.time()
    return runs_as_lines([view], now) if console.width < TABLE_WIDTH else run_table(view, now)


def _follow_lines(views: Iterator[RunView]) -> RunView:
    newest: RunView | None = None
    for view in views:
        for line in change_lines(newest, view, time.time()):
            print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
        newest = view
    assert newest is not None, "a watch begins with the state of now"
    return newest


def _console() -> Console:
    console = Console(highlight=False)
    # Where nobody looks at it, rich takes 80 columns and cuts names.
    return console if console.is_terminal else Console(highlight=False, width=_WIDE)
