"""What people read when MLflow cannot be used."""

import base64
import http.server
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.tracking.connection import connect
from tests.registering import SECRET
from tests.runs import free_port
from training.errors import UserError


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class Refusing(http.server.ThreadingHTTPServer):
    """Answers every request with one status."""

    status = 401
    authorization: str | None = None


class Handler(http.server.BaseHTTPRequestHandler):
    server: Refusing

    def do_GET(self) -> None:
        self.server.authorization = self.headers["Authorization"]
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(b"You are not welcome")

    do_POST = do_PUT = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    with Refusing(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def refusal(uri: str, root: Path) -> str:
    with pytest.raises(UserError) as caught, connect(uri, root, print):
        pytest.fail("connected")
    message = str(caught.value)
    assert SECRET not in message
    assert "\n" not in message
    # Printed alone, but a traceback of it must not show what it came from either.
    assert caught.value.__suppress_context__
    return message


def test_unreachable_server_is_reported_in_seconds(tmp_path: Path) -> None:
    port = free_port()
    started = time.monotonic()
    message = refusal(f"http://127.0.0.1:{port}", tmp_path)
    assert time.monotonic() - started < 15
    assert message.startswith(f"there is no answer from an MLflow server at http://127.0.0.1:{port}: check")
    assert "Connection refused" in message


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "does not accept the credentials"),
        (403, "refuses the request"),
        (404, "is no MLflow server"),
        (500, "failed at a request (too many 500 error responses)"),
        (501, "failed at a request"),
    ],
)
def test_server_refuses(
    refusing: Refusing, tmp_path: Path, status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "alice")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", SECRET)
    refusing.status = status
    message = refusal(f"http://127.0.0.1:{refusing.server_port}", tmp_path)
    assert said in message
    # The credentials of the environment did reach the server.
    assert refusing.authorization is not None
    assert base64.b64decode(refusing.authorization.split()[1]).decode() == f"alice:{SECRET}"


@pytest.mark.parametrize("uri", ["ftp://host/x", "postgresql:x", "somewhere"])
def test_uris_that_are_no_place(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "registry.tracking_uri" in refusal(uri, tmp_path)


def test_database_driver_is_missing(tmp_path: Path) -> None:
    message = refusal("mssql+pymssql://127.0.0.1/mlflow", tmp_path)
    assert "needs the Python package 'pymssql'" in message


def test_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("hello " * 1000)
    assert "cannot be opened (file is not a database)" in refusal(f"sqlite:///{tmp_path}/mlflow.db", tmp_path)


def test_a_file_that_the_server_does_not_take(refusing: Refusing, tmp_path: Path, migrated_database: Path) -> None:
    import requests

    shutil.copy(migrated_database, tmp_path / "mlflow.db")

    uri = f"http://127.0.0.1:{refusing.server_port}"
    refusing.status = 413
    with pytest.raises(UserError) as caught, connect(None, tmp_path, print):
        requests.put(f"{uri}/model?X-Amz-Signature={SECRET}", timeout=9).raise_for_status()
    assert "a file could not be exchanged" in str(caught.value)
    assert "413" in str(caught.value)
    with pytest.raises(UserError) as caught, connect(None, tmp_path, print):
        requests.put(f"http://127.0.0.1:{free_port()}/model?X-Amz-Signature={SECRET}", timeout=9)
    assert "Connection refused" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_store_whose_path_means_something_in_a_uri(tmp_path: Path, migrated_database: Path) -> None:
    root = tmp_path / "a?b=c%41#d é"
    root.mkdir()
    shutil.copy(migrated_database, root / "mlflow.db")
    with connect(None, root, print) as connection:
        connection.client.create_experiment("name")
    with sqlite3.connect(root / "mlflow.db") as database:
        assert ("name",) in database.execute("SELECT name FROM experiments").fetchall()
    assert list(tmp_path.iterdir()) == [root]


def test_database_of_another_mlflow(tmp_path: Path, migrated_database: Path) -> None:
    shutil.copy(migrated_database, tmp_path / "mlflow.db")
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    assert "mlflow db upgrade sqlite:///" in refusal(f"sqlite:///{tmp_path}/./mlflow.db", tmp_path)


def test_environment_and_log_level_come_back(
    tmp_path: Path, migrated_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import logging
    import os

    shutil.copy(migrated_database, tmp_path / "mlflow.db")

    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "maybe")
    level = logging.getLogger("mlflow").level
    before = dict(os.environ)
    with connect(None, tmp_path, print) as connection:
        assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
        assert connection.uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert dict(os.environ) == before
    assert logging.getLogger("mlflow").level == level


def test_a_set_up_that_was_killed_half_way_is_made_anew(tmp_path):
    unfinished = tmp_path / ".mlflow.db.unfinished"
    unfinished.write_bytes(b"half of it")
    with connect(None, tmp_path, lambda line: None) as connection:
        assert connection.client.search_experiments()
    assert (tmp_path / "mlflow.db").is_file() and not unfinished.exists()
