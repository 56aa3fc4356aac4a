"""A connection to MLflow: which kind of place it is, credentials, and errors that people can act on."""

import contextlib
import fcntl
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from training.errors import UserError
from training.store import disk_errors

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}

_FIRST_CONTACT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""MLflow retries for minutes, which suits a busy server but not one that was never there. So the first
request is impatient, and the later ones keep MLflow's patience."""


@dataclass(frozen=True)
class Connection:
    """An open connection.

    Attributes:
        client: The `MlflowClient`.
        uri: The tracking URI.
        artifacts: Where a new experiment keeps its artifacts; None lets the server say.
        is_server: Whether it is a server, which may not see the store, and refuses a model version whose source
            lies outside the run's artifacts.
    """

    client: Any
    uri: str
    artifacts: str | None
    is_server: bool


@contextlib.contextmanager
def connect(tracking_uri: str | None, root: Path, note: Callable[[str], None]) -> Iterator[Connection]:
    """Open MLflow and check, within seconds, that it answers.

    Args:
        tracking_uri: `http(s)://` of a server, or a database URI. None: SQLite inside the store. With a
            database, the artifacts of a new experiment are kept inside the store.
        root: The store.
        note: Takes a line for people.

    Raises:
        UserError: MLflow cannot be reached, wants other credentials, or cannot use the database. Inside the
            block, too.
    """
    uri = tracking_uri or _database_in(root)
    scheme = urlsplit(uri).scheme.partition("+")[0]
    with _environment(_QUIET), _quiet_log(), _readable_errors(uri):
        if scheme in _DATABASES:
            client = _open_database(uri, note)
            yield Connection(client, uri, (root / "mlflow-artifacts").as_uri(), is_server=False)
        else:
            client = _open_server(uri)
            yield Connection(client, uri, None, is_server=True)


def has_registry(tracking_uri: str | None, root: Path) -> bool:
    """Whether there can be anything in it: opening the store's own database would make it."""
    return tracking_uri is not None or (root / "mlflow.db").is_file()


def _database_in(root: Path) -> str:
    file = str(root / "mlflow.db")
    if not set(file) & set("%?"):
        return f"sqlite:///{file}"
    from sqlalchemy import URL

    # Quoted, as these have a meaning in a URI. MLflow makes the parent folder of a `sqlite:///` URI without
    # reading the quotes, so beside the store; naming the driver keeps it from that.
    return URL.create("sqlite+pysqlite", database=file).render_as_string()


def _open_server(uri: str) -> Any:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    # What the operator has set wins.
    with _environment({name: value for name, value in _FIRST_CONTACT.items() if name not in os.environ}):
        client.search_experiments(max_results=1)
    return client


def _open_database(uri: str, note: Callable[[str], None]) -> Any:
    import sqlalchemy
    from mlflow import MlflowClient

    try:
        url = sqlalchemy.make_url(uri)
        with _one_at_a_time(url):
            # Asked first without MLflow, which would try a database that is not there for almost two minutes.
            engine = sqlalchemy.create_engine(url)
            is_new = not sqlalchemy.inspect(engine).get_table_names()
            engine.dispose()
            if is_new:
                note("setting up the MLflow database (a few seconds, the first time) …")
                _set_up(url)
            client = MlflowClient(tracking_uri=uri, registry_uri=uri)
            client.search_experiments(max_results=1)
            client.search_registered_models(max_results=1)
    except ModuleNotFoundError as error:
        raise UserError(
            f"the MLflow database {uri} needs the Python package '{error.name}', which is not installed: "
            "install it, or set registry.tracking_uri to an MLflow server"
        ) from None
    except sqlalchemy.exc.SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise UserError(
            f"the MLflow database {uri} cannot be opened ({reason}): check registry.tracking_uri, and "
            "that the database runs"
        ) from None
    return client


def _set_up(url: Any) -> None:
    """Make the tables of a new SQLite file beside its place, so that none is there half-made if this is killed."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return
    from mlflow import MlflowClient

    file = Path(url.database).absolute()
    unfinished = file.with_name(f".{file.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    client = MlflowClient(tracking_uri=url.set(database=str(unfinished)).render_as_string())
    client.search_experiments(max_results=1)
    unfinished.replace(file)


@contextlib.contextmanager
def _one_at_a_time(url: Any) -> Iterator[None]:
    # Two runs that set up one SQLite file at once would find each other's half of the tables.
    if url.get_backend_name() != "sqlite" or not url.database:
        yield
        return
    file = Path(url.database).absolute()
    with disk_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.with_name(f".{file.name}.lock").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _readable_errors(uri: str) -> Iterator[None]:
    # Imported here, not above: MLflow reads some of its environment when it is imported.
    from mlflow.exceptions import MlflowException
    from requests import RequestException

    try:
        yield
    except MlflowException as error:
        if (sentence := _explain(error, uri)) is None:
            raise
        raise UserError(sentence) from None
    except RequestException as error:
        # What sends files does not put it in MLflow's words. The query of an address may be a signature.
        said = re.sub(
            r"\?\S*", "", _cause(error) if error.response is None else " ".join(str(error).split())[:300]
        )
        raise UserError(
            f"a file could not be exchanged with the MLflow server {uri} ({said}): look at its log, at the room "
            "in its artifact store, and at the sizes that a proxy before it allows, and run this again"
        ) from None


def _explain(error: Any, uri: str) -> str | None:
    """The sentence for an error that people can mend; None for any other."""
    said = " ".join(str(error).split())[:300]
    status = error.get_http_status_code()
    if status == 401:
        return (
            f"the MLflow server {uri} does not accept the credentials: set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, in the step's environment"
        )
    if status == 403:
        return (
            f"the MLflow server {uri} refuses the request ({said}): give this user the permission, or set "
            "registry.tracking_uri, registry.experiment and registry.model_name to what it may use"
        )
    if re.search(r"failed with error code 5\d\d|too many 5\d\d error responses", said):
        return (
            f"the MLflow server {uri} failed at a request ({_cause(error)}): look at its log, and run this again "
            "when it works"
        )
    if "out-of-date database schema" in said:
        return (
            f"the MLflow database {uri} was made by another version of MLflow: back it up and run "
            f"`mlflow db upgrade {uri}`, or choose another in registry.tracking_uri"
        )
    if said.startswith("API request to endpoint"):
        return (
            f"what answers at {uri} is no MLflow server ({said}): set registry.tracking_uri to the "
            "address that `mlflow server` prints"
        )
    if said.startswith("API request to"):
        return (
            f"there is no answer from an MLflow server at {uri}: check registry.tracking_uri, and that "
            f"the server runs and can be reached from here ({_cause(error)})"
        )
    if "unsupported URI" in said or "filesystem tracking backend" in said:
        return (
            f"registry.tracking_uri is {uri}, which MLflow cannot open: give http(s)://HOST:PORT of a "
            "server, or a database such as sqlite:////PATH/mlflow.db"
        )
    return None


def _cause(error: BaseException) -> str:
    # The innermost exception is the operating system's or the server's; those around it repeat it.
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return " ".join(str(error).split())[:200] or type(error).__name__


@contextlib.contextmanager
def quiet_mlflow() -> Iterator[None]:
    """Set, for the block, all that `connect` sets in the environment, so that it changes nothing there itself."""
    patience = {name: value for name, value in _FIRST_CONTACT.items() if name not in os.environ}
    with _environment({**_QUIET, **patience}):
        yield


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    variables = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet_log() -> Iterator[None]:
    import mlflow  # noqa: F401  (it sets its logger's level when it is imported)

    logger = logging.getLogger("mlflow")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)
