"""Fixtures of tests about the registry; tests/conftest.py imports them."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from components.tracking.connection import connect
from tests.registering import ReadyRun, make_ready_run, save_tiny_llama
from training.run_folder import RunFolder


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database; a copy of it saves a test the seconds that MLflow takes to make one."""
    root = tmp_path_factory.mktemp("database")
    with connect(None, root, print):
        pass
    return root / "mlflow.db"


@pytest.fixture
def ready_run(tmp_path: Path, tiny_llama: Path, migrated_database: Path) -> ReadyRun:
    """Makes the run folder of a run whose train and evaluate steps are done; see `make_ready_run`."""

    def make(
        run: str = "demo", *, root: Path = tmp_path / "my store", fresh_database: bool = False, **facts: Any
    ) -> RunFolder:
        folder = make_ready_run(root, tiny_llama, run, **facts)
        if not fresh_database and not (root / "mlflow.db").exists():
            shutil.copy(migrated_database, root / "mlflow.db")
        return folder

    return make
