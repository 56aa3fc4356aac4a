"""Registering at a real MLflow server over HTTP."""

from collections.abc import Callable
from pathlib import Path

import pytest
from registering import Server, aliases, client_of, register

from training.run_folder import RunFolder


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_register_twice_at_a_server(
    ready_run: Callable[..., RunFolder],
    mlflow_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import mlflow.artifacts
    from transformers import AutoModelForCausalLM

    folder = ready_run("remote", tracking_uri=mlflow_server.uri)
    first, second = register(folder), register(folder)
    assert second == first
    client = client_of(mlflow_server.uri)
    version = client.get_model_version("shardline-model", first.version)
    assert version.source == f"runs:/{first.mlflow_run_id}/model"
    assert version.tags["heldout_loss"] == "2.0"
    run = client.get_run(first.mlflow_run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["improvement"] == 0.5
    assert len(client.get_metric_history(first.mlflow_run_id, "train/loss")) == 6
    assert aliases(mlflow_server.uri)["champion"] == first.version

    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)
    found = mlflow.artifacts.download_artifacts(
        "models:/shardline-model@champion", dst_path=str(tmp_path / "download")
    )
    assert AutoModelForCausalLM.from_pretrained(found).num_parameters() > 0


def test_a_measurement_that_is_not_a_number(ready_run: Callable[..., RunFolder], mlflow_server: Server) -> None:
    folder = ready_run("diverged", tuned_loss=float("nan"), tracking_uri=mlflow_server.uri, model_name="diverged")
    made = register(folder)
    assert made.holder is None
    assert "nan" in made.reasons[0]
