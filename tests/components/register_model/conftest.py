"""Runs that are ready to be registered, and a real MLflow server."""

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from registering import START, Server, free_port, write_evaluation, write_steps

from components.register_model.connection import connect
from training.config import RunConfig
from training.run_folder import RunFolder
from training.store import Store


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database; a copy of it saves a test the seconds that MLflow takes to make one."""
    root = tmp_path_factory.mktemp("database")
    with connect(None, root, print):
        pass
    return root / "mlflow.db"


@pytest.fixture
def ready_run(tmp_path: Path, tiny_llama: Path, migrated_database: Path) -> Callable[..., RunFolder]:
    """Makes the run folder of a run whose train and evaluate steps are done."""

    def make(
        run: str = "demo",
        *,
        base_loss: float = 2.5,
        tuned_loss: float = 2.0,
        dataset: str = "d" * 16,
        heldout: str = "e" * 16,
        root: Path = tmp_path / "my store",
        fresh_database: bool = False,
        **registry: Any,
    ) -> RunFolder:
        for kind, key, source in (("models", "m" * 16, "org/base"), ("datasets", dataset, "org/data")):
            facts = {"source": source, "revision": "abc123", "heldout_fingerprint": heldout}
            with Store(root).publish(kind, key, facts) as staging:
                (staging / "content").write_text(source)
        if not fresh_database and not (root / "mlflow.db").exists():
            shutil.copy(migrated_database, root / "mlflow.db")
        folder = RunFolder(root, run)
        config = RunConfig.model_validate(
            {"model": {"name": "org/base"}, "data": {"train": "org/data"}, "registry": registry}
        )
        folder.create(config)
        folder.save_input("model", root / "models" / ("m" * 16))
        folder.save_input("dataset", root / "datasets" / dataset)
        shutil.copytree(tiny_llama, folder.model, dirs_exist_ok=True)
        write_steps(folder, attempt=1, steps=range(1, 5), start=START, loss=3.0)
        # The second attempt goes on after step 2.
        write_steps(folder, attempt=2, steps=range(3, 7), start=START + 100, loss=2.0)
        write_evaluation(folder, base_loss, tuned_loss)
        report = f"<html>tracking_uri: {registry.get('tracking_uri')}</html>"
        (folder.evaluation / "report.html").write_text(report)
        return folder

    return make


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("mlflow-server")
    server = Server(f"127.0.0.1:{free_port()}", folder)
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", server.address.rpartition(":")[2], "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for(server, process)
        yield server
    finally:
        # Its workers are children of a child: the whole session goes.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(server: Server, process: subprocess.Popen) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert process.poll() is None, (server.folder / "log").read_text()
        try:
            opener.open(f"{server.uri}/health", timeout=2)
        except OSError:
            time.sleep(0.2)
            continue
        return
    raise AssertionError(f"the MLflow server did not start: {(server.folder / 'log').read_text()}")
