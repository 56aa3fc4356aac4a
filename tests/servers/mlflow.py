"""A real MLflow server: PostgreSQL for runs and registry, S3 for artifacts, which it serves itself."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.runs import free_port
from tests.servers.s3 import S3Server

_START_WITHIN_S = 120
_BUCKET = "mlflow"


@dataclass(frozen=True)
class MlflowServer:
    """A server that runs.

    Attributes:
        uri: Its tracking URI.
        s3: Where it keeps artifacts.
        bucket: The bucket of them.
    """

    uri: str
    s3: S3Server
    bucket: str


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[MlflowServer]:
    for package in ("psycopg2", "boto3"):
        pytest.importorskip(package)
    programs = _postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt install postgresql")
    with _postgres(programs) as database:
        bucket = s3_server.make_bucket(_BUCKET)
        with _mlflow(tmp_path_factory.mktemp("mlflow"), database, s3_server, bucket) as uri:
            yield MlflowServer(uri, s3_server, bucket)


@contextlib.contextmanager
def _mlflow(folder: Path, database: str, s3: S3Server, bucket: str) -> Iterator[str]:
    port = free_port()
    uri, log = f"http://127.0.0.1:{port}", folder / "log"
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--workers", "1", "--backend-store-uri", database, "--artifacts-destination", f"s3://{bucket}"),
    ]
    environment = {
        **os.environ,
        **s3.environment,
        "MLFLOW_S3_ENDPOINT_URL": s3.endpoint,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait_for(f"{uri}/health", process, log)
        yield uri
    finally:
        # Its workers are children of a child: the whole session goes.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def _postgres(programs: Path) -> Iterator[str]:
    # Not below pytest's folder, which only its owner may enter: PostgreSQL refuses to run as root.
    folder = Path(tempfile.mkdtemp(prefix="shardline-postgres-"))
    user = None if os.geteuid() else "postgres"
    if user is not None:
        account = pwd.getpwnam(user)
        os.chown(folder, account.pw_uid, account.pw_gid)
    port, data, log = free_port(), folder / "data", folder / "log"
    try:
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "mlflow", "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True,
            capture_output=True,
            cwd=folder,
            user=user,
        )
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": str(folder), "fsync": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with log.open("w") as output:
            process = subprocess.Popen(
                [programs / "postgres", "-D", data, "-p", str(port), *options],
                cwd=folder,
                user=user,
                stdout=output,
                stderr=output,
            )
        try:
            address = f"postgresql://mlflow@127.0.0.1:{port}/postgres"
            _wait_for_postgres(address, process, log)
            yield address.replace("://", "+psycopg2://")
        finally:
            process.send_signal(signal.SIGQUIT)  # at once, and its children with it
            process.wait()
    finally:
        shutil.rmtree(folder)


def _postgres_programs() -> Path | None:
    """Where initdb and postgres are: Debian leaves them out of the PATH."""
    on_path = Path(shutil.which("initdb") or "").resolve().parent
    folders = [on_path, *(path.parent for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")))]
    return next((folder for folder in folders if (folder / "postgres").is_file()), None)


def _wait_for_postgres(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg2

    give_up = time.monotonic() + _START_WITHIN_S
    while True:
        try:
            psycopg2.connect(address).close()
        except psycopg2.OperationalError:
            assert process.poll() is None and time.monotonic() < give_up, log.read_text()
            time.sleep(0.1)
        else:
            return


def _wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    give_up = time.monotonic() + _START_WITHIN_S
    while True:
        try:
            opener.open(address, timeout=2)
        except OSError:
            assert process.poll() is None and time.monotonic() < give_up, log.read_text()
            time.sleep(0.2)
        else:
            return
