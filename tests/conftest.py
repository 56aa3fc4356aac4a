"""Fixtures that tests of several rooms share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.registering_fixtures import migrated_database, ready_run, tiny_llama
from tests.runs import VOCABULARY, Run, llama_config, packed_rows, save_model, write_arrow
from tests.servers.mlflow import mlflow_server
from tests.servers.s3 import s3_server
from training.config import RunConfig
from training.run_folder import RunFolder
from training.store import Store

# Fixtures: imported here alone, so that what they make for the session is made once.
__all__ = ["migrated_database", "mlflow_server", "ready_run", "s3_server", "tiny_llama"]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "llama", llama_config(tie_word_embeddings=True))


@pytest.fixture
def make_run(tmp_path, tiny_model) -> Callable[..., Run]:
    def make(name="run", num_rows=13, model: Path | None = None, rows=None, **sections) -> Run:
        source = model or tiny_model
        store = Store(tmp_path / "store")
        config = RunConfig.model_validate(
            {
                "model": {"name": "org/tiny"},
                "data": {"train": "org/data"},
                **sections,
                "training": {"precision": "fp64", "global_batch_size": 4, **sections.get("training", {})},
            }
        )
        folder = RunFolder(store.root, name)
        folder.create(config)
        key = source.name
        if store.get("models", key) is None:
            with store.publish("models", key, {"vocab_size": VOCABULARY}) as staging:
                for path in source.iterdir():
                    (staging / path.name).write_bytes(path.read_bytes())
        dataset = f"rows-{num_rows}" if rows is None else "rows"
        if store.get("datasets", dataset) is None:
            with store.publish("datasets", dataset, {"max_token_id": VOCABULARY - 1}) as staging:
                write_arrow(staging / "train.arrow", packed_rows(num_rows) if rows is None else rows)
        folder.save_input("model", store.path("models", key))
        folder.save_input("dataset", store.path("datasets", dataset))
        return Run(folder)

    return make
