"""Checks that cost seconds now, and would cost a failed step later."""

import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from components.preflight.pins import data_pins
from training.config import RunConfig, check_world_size, too_many_nodes
from training.device import default_device, processes_per_node
from training.errors import UserError
from training.health.policy import load_policy
from training.hub import is_commit
from training.measure.task_files import check_tasks
from training.model_source import classify, pin
from training.sources.file_source import FileSource
from training.sources.hub_dataset import HubDataset
from training.sources.open import open_heldout, open_train
from training.sources.rows import Malformed, Source

_MIN_FREE_BYTES = 2**30
_SERVER_TIMEOUT_S = 10
_FIRST_ROWS = 100

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
"""Kinds that MLflow keeps its records in."""


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        subject: What was looked at.
        ok: Whether the run can go on.
        text: What is there; or what is wrong, and what to do.
        pins: Dotted config fields to fix to what was found, such as a branch to its commit.
        contents: What identifies the content of each source of the training and of the held-out data.
    """

    subject: str
    ok: bool
    text: str
    pins: dict[str, Any] = field(default_factory=dict)
    contents: tuple[tuple[str, ...], ...] = ()


def run_checks(config: RunConfig, store: Path) -> list[Finding]:
    """Look at everything that the run needs; a check that fails does not keep the others from being made.

    Args:
        config: The run.
        store: Root of the store.
    """
    in_cluster = config.cluster.launcher != "local"
    checks: dict[str, Callable[[], Finding]] = {
        "model": lambda: _model(config),
        "data": lambda: _data(config),
        "ranks": lambda: _ranks_in_pods(config) if in_cluster else _ranks(config),
        "store": lambda: _store(store),
        "registry": lambda: _registry(config),
    }
    if config.resilience.health_policy is not None:
        checks["health policy"] = lambda: _health_policy(config.resilience.health_policy)
    if config.evaluation.tasks:
        checks["tasks"] = lambda: _tasks(config)
    if in_cluster:
        from components.preflight.cluster import cluster_checks  # the client takes half a second to import

        checks |= cluster_checks(config)
    return [_made(subject, check) for subject, check in checks.items()]


def _made(subject: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    # RuntimeError: what was asked does not answer.
    except (UserError, ValueError, RuntimeError) as error:
        return Finding(subject, False, str(error))
    except OSError as error:  # of a name that is too long, or a folder that may not be read
        return Finding(
            subject, False, f"the {subject} cannot be looked at ({error.strerror or error}): correct its name"
        )


def _model(config: RunConfig) -> Finding:
    commit = pin(config.model)
    if commit is None:
        return Finding("model", True, f"{config.model.name} ({type(classify(config.model)).__name__})")
    shown = commit[:12] if is_commit(commit) else commit
    return Finding("model", True, f"{config.model.name} at {shown}", {"model.revision": commit})


def _data(config: RunConfig) -> Finding:
    train, heldout = open_train(config.data), open_heldout(config.data)
    for source in (*train, *heldout):
        _look_at_first_rows(source, config.data.max_malformed_rows)
    held = " + ".join(map(_shown, heldout)) or "a hashed share"
    text = f"{' + '.join(map(_shown, train))}, held out: {held}"
    contents = tuple(tuple(source.content for source in sources) for sources in (train, heldout))
    return Finding("data", True, text, data_pins(config.data, train, heldout), contents)


def _look_at_first_rows(source: Source, max_malformed: int) -> None:
    """Read so far as it costs nothing, so that what cannot be read is known before a model is fetched.

    Raises:
        UserError: The source cannot be read, or among its first rows are more malformed ones than may be.
    """
    if isinstance(source, HubDataset) and not source.streaming:
        return  # its first row comes with all others
    rows = itertools.islice(next(iter(source.blocks())).rows(), _FIRST_ROWS)
    malformed = [row for row in rows if isinstance(row, Malformed)]
    if len(malformed) > max_malformed:
        raise UserError(" ".join(malformed[max_malformed]))


def _shown(source: Source) -> str:
    if not isinstance(source, FileSource) or (len(source.files) == 1 and source.split is None):
        return source.name
    num_files = f"{len(source.files):,} file{'s' * (len(source.files) > 1)}"
    of_split = "" if source.split is None else f" of the split '{source.split}'"
    return f"{source.name} ({num_files}{of_split}, {sum(file.size for file in source.files) / 1e9:.2f} GB)"


def _ranks(config: RunConfig) -> Finding:
    device = default_device().type
    if problems := too_many_nodes(config):
        raise UserError("\n".join(problems))
    per_node = config.parallel.procs_per_node or processes_per_node()
    ranks = config.parallel.num_nodes * per_node
    check_world_size(config, ranks)
    return Finding("ranks", True, f"{ranks} on {config.parallel.num_nodes} node(s), {device}")


def _ranks_in_pods(config: RunConfig) -> Finding:
    nodes = config.parallel.num_nodes
    per_node = config.parallel.procs_per_node or config.cluster.gpus_per_node
    if not per_node and config.cluster.gpus_per_node == 0:
        raise UserError(
            "cluster.gpus_per_node is 0, so how many ranks each pod has is not known: set parallel.procs_per_node "
            "(in the UI: procs_per_node) too"
        )
    if not per_node:
        return Finding("ranks", True, f"one per GPU of the train task, on {nodes} node(s)")
    check_world_size(config, nodes * per_node)
    return Finding("ranks", True, f"{nodes * per_node} on {nodes} node(s)")


def _health_policy(path: str | None) -> Finding:
    policy = load_policy(path)
    return Finding("health policy", True, f"{path}, with rules for {len(policy.xids)} XIDs")


def _tasks(config: RunConfig) -> Finding:
    check_tasks(config.evaluation.tasks)
    return Finding("tasks", True, ", ".join(config.evaluation.tasks))


def _store(store: Path) -> Finding:
    free = shutil.disk_usage(store).free
    if free < _MIN_FREE_BYTES:
        raise UserError(
            f"the store {store} has {free / 2**20:,.0f} MiB free, and at least {_MIN_FREE_BYTES / 2**20:,.0f} "
            "MiB are needed: free some space or choose another store"
        )
    return Finding("store", True, f"{store}, {free / 2**30:,.0f} GiB free")


def _registry(config: RunConfig) -> Finding:
    uri = config.registry.tracking_uri
    if uri is None:
        return Finding("registry", True, "MLflow in SQLite inside the store")
    scheme = uri.partition("://")[0].lower()
    if scheme == "databricks":
        return Finding("registry", True, "MLflow of Databricks")
    if scheme not in ("http", "https"):
        _check_database(uri)
        return Finding("registry", True, "an MLflow database")
    try:
        status = requests.get(f"{uri.rstrip('/')}/health", timeout=_SERVER_TIMEOUT_S).status_code
    except requests.RequestException as error:
        # The error's text may hold the URI, and the URI credentials: only its kind is told.
        raise UserError(
            f"there is no answer from the MLflow server in registry.tracking_uri ({type(error).__name__}): check "
            "the address, and that the server can be reached from here"
        ) from None
    if status >= 500:
        raise UserError(
            f"the MLflow server in registry.tracking_uri answers with HTTP {status}: look at the server's log"
        )
    return Finding("registry", True, "an MLflow server that answers")


def _check_database(uri: str) -> None:
    """Check that MLflow knows the kind of database, and that the driver's package is there."""
    import sqlalchemy

    try:
        url = sqlalchemy.make_url(uri)
        if url.get_backend_name() not in _DATABASES:
            raise _not_for_mlflow(uri)
        url.get_dialect().import_dbapi()
    except sqlalchemy.exc.ArgumentError:  # no URI, or an unknown driver
        raise _not_for_mlflow(uri) from None
    except ImportError as error:
        raise UserError(
            f"registry.tracking_uri is '{uri}', whose driver cannot be imported ({error}): install its Python "
            "package, name one that is installed as in postgresql+DRIVER://, or give an MLflow server"
        ) from None


def _not_for_mlflow(uri: str) -> UserError:
    return UserError(
        f"registry.tracking_uri is '{uri}', which MLflow cannot open: give http(s)://HOST:PORT of a server, or a "
        "database such as sqlite:////PATH/mlflow.db"
    )
