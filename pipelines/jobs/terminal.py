"""What the commands about jobs share: how they reach a cluster or a store, and how they talk."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from training.errors import EXIT_FAILED, UserError
from training.run_folder import RunFolder

if TYPE_CHECKING:
    from components.cluster.client import Cluster

_LOCAL_STORE = Path(".shardline")
"""Where `shardline run` keeps its runs if nothing else is said."""


def connect(run: str, namespace: str, here: str = "the run is on this machine: add --store {store}") -> "Cluster":
    """Connect to the cluster.

    Args:
        run: The run that is looked for, or empty.
        namespace: Where; empty: the pod's, or that of the kubeconfig's context.
        here: What to say where there is no cluster, but the run in this folder's `{store}`.

    Raises:
        UserError: There is no cluster to talk to.
    """
    from components.cluster.client import connect as connect_cluster

    try:
        return connect_cluster(namespace or None)
    except UserError as error:
        hint = f"runs of this machine are listed with --store, as in --store {_LOCAL_STORE}"
        if run:
            hint = here.format(store=_LOCAL_STORE) if RunFolder(_LOCAL_STORE, run).events.is_dir() else ""
        raise UserError("; ".join(filter(None, (str(error), hint)))) from None


@contextlib.contextmanager
def cluster_errors() -> Iterator[None]:
    """Tell in one sentence that a cluster does not answer.

    Raises:
        Exit: It did not.
    """
    try:
        yield
    except RuntimeError as error:
        # By name, because its class would load the Kubernetes client for runs on this machine too.
        if type(error).__name__ != "ClusterUnavailable":
            raise
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_FAILED) from None


def folder_in(store: Path, run: str) -> RunFolder:
    """The run's folder in a store.

    Raises:
        UserError: It is not there; the message names the runs that are.
    """
    from pipelines.jobs.names import suggest
    from pipelines.jobs.store import stored_runs

    folder = RunFolder(store, run)
    if not folder.events.is_dir():
        raise UserError(
            f"the run '{run}' is not in the store {folder.root}: {suggest(run, stored_runs(folder.root), 'path')}"
        )
    return folder


def folder_of_environment(run: str) -> RunFolder | None:
    """The run's folder in the store of SHARDLINE_STORE, there or not; None where that is not set."""
    store = os.environ.get("SHARDLINE_STORE")
    return RunFolder(store, run) if store else None


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless the answer is given already.

    Raises:
        UserError: There is nobody to ask.
        Abort: The answer is no.
    """
    if yes:
        return
    # None: the shell closed it.
    if sys.stdin is None or not sys.stdin.isatty():
        raise UserError("there is no terminal to ask whether to stop the run: give --yes")
    typer.confirm(question, abort=True)


def write(text: str) -> None:
    """Print a text of whole lines at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def say(text: str) -> None:
    """Print a line beside the output proper."""
    print(text, file=sys.stderr, flush=True)
