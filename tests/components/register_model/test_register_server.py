"""Registering at a real MLflow server over HTTP, which keeps its registry in PostgreSQL and artifacts in S3."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from components.tracking.champion import champion_of
from pipelines.cli import app
from tests.registering import ReadyRun, aliases, client_of, estimate, register, write_evaluation, write_gate
from tests.servers.mlflow import MlflowServer


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def keys_of(server: MlflowServer, part: str) -> list[str]:
    listed = server.s3.client().list_objects_v2(Bucket=server.bucket).get("Contents", [])
    return [entry["Key"] for entry in listed if part in entry["Key"]]


def test_a_copy_in_the_artifact_store_answers_and_rolls_back(
    ready_run: ReadyRun,
    mlflow_server: MlflowServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import mlflow

    uri = mlflow_server.uri
    folder = ready_run("remote", tracking_uri=uri)
    first = register(folder)
    assert "copying the tuned model" in capsys.readouterr().out
    second = register(folder)
    assert second == first
    # What is there with its size is not sent again.
    output = capsys.readouterr().out
    assert "copying" not in output
    assert "files of the model are at" in output

    client = client_of(uri)
    version = client.get_model_version("shardline-model", first.version)
    assert version.source == f"runs:/{first.mlflow_run_id}/model"
    assert version.tags["heldout_loss"] == "2.0"
    run = client.get_run(first.mlflow_run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["improvement"] == 0.5
    assert len(client.get_metric_history(first.mlflow_run_id, "train/loss")) == 6
    assert aliases(uri)["champion"] == first.version
    stored = keys_of(mlflow_server, f"{first.mlflow_run_id}/artifacts/model/")
    assert {key.rpartition("/model/")[2] for key in stored if "safetensors" in key} == {"model.safetensors"}
    assert not [key for key in stored if key.endswith((".bin", ".pkl", ".pt"))]

    # From a machine that has nothing of the store.
    monkeypatch.chdir(tmp_path)
    code = (
        "import json, mlflow; "
        "model = mlflow.pyfunc.load_model('models:/shardline-model@champion'); "
        "print(json.dumps(model.predict(model.input_example)[0]['choices'][0]['message']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"MLFLOW_TRACKING_URI": uri, "NO_PROXY": "127.0.0.1", "HOME": str(tmp_path), "PATH": "/usr/bin"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout)["role"] == "assistant"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    pipeline = mlflow.transformers.load_model(f"models:/shardline-model/{first.version}")
    assert pipeline("what is", max_new_tokens=2)[0]["generated_text"].startswith("what is")

    # The champion is downloaded once, and is what was registered.
    notes: list[str] = []
    champion = champion_of(folder.config(), folder.root, notes.append)
    assert champion is not None
    assert champion.version == first.version
    assert champion.is_of(folder)
    weights = champion.folder / "model.safetensors"
    assert weights.read_bytes() == (folder.model / "model.safetensors").read_bytes()
    assert {path.suffix for path in champion.folder.iterdir()} <= {".safetensors", ".json", ".jinja"}
    again = champion_of(folder.config(), folder.root, notes.append)
    assert again == champion
    assert len([note for note in notes if "downloading" in note]) == 1

    other = register(ready_run("better", tracking_uri=uri, champion=first.version))
    assert aliases(uri)["champion"] == other.version
    result = CliRunner().invoke(app, ["rollback", "shardline-model", "--tracking-uri", uri, "--reason", "worse"])
    assert result.output == (
        f"shardline-model: champion moved from version {other.version} to version {first.version}\n"
    )
    assert aliases(uri)["champion"] == first.version
    mlflow_server.s3.client().delete_objects(
        Bucket=mlflow_server.bucket,
        Delete={
            "Objects": [{"Key": key} for key in keys_of(mlflow_server, f"{other.mlflow_run_id}/artifacts/model")]
        },
    )
    refused = CliRunner().invoke(
        app, ["rollback", "shardline-model", "--to", other.version, "--tracking-uri", uri]
    )
    assert "is gone from runs:/" in str(refused.exception)
    assert aliases(uri)["champion"] == first.version


def test_a_copy_that_was_cut_short_is_completed(
    ready_run: ReadyRun, mlflow_server: MlflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    folder = ready_run("cut", tracking_uri=mlflow_server.uri, model_name="cut")
    sent: list[str] = []
    log_artifact = MlflowClient.log_artifact

    def send(self: MlflowClient, run_id: str, path: str, artifact_path: str | None = None) -> None:
        if len(sent) == 5:
            raise ConnectionError("the line is cut")
        if (artifact_path or "").startswith("model"):
            sent.append(path)
        log_artifact(self, run_id, path, artifact_path)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(MlflowClient, "log_artifact", send)
        register(folder)
    before = list(sent)
    sent.clear()
    monkeypatch.setattr(
        MlflowClient,
        "log_artifact",
        lambda self, run_id, path, artifact_path=None: (
            sent.append(path),
            log_artifact(self, run_id, path, artifact_path),
        ),
    )
    made = register(folder)
    assert (made.version, made.alias_moved) == ("1", True)
    assert not {path for path in before if not path.endswith(".md")} & set(sent)
    assert any(path.endswith("model.safetensors") for path in sent)


def test_a_reference_that_the_server_would_refuse(
    ready_run: ReadyRun, mlflow_server: MlflowServer, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ready_run("byref", tracking_uri=mlflow_server.uri, model_name="byref", artifact="reference")
    with pytest.raises(SystemExit):
        register(folder)
    assert "takes only models that lie in its own artifact store" in capsys.readouterr().err


def test_texts_without_end_and_a_measurement_that_is_not_a_number(
    ready_run: ReadyRun, mlflow_server: MlflowServer
) -> None:
    folder = ready_run("diverged", passed=False, tracking_uri=mlflow_server.uri, model_name="diverged")
    write_evaluation(folder, base_loss=2.5, tuned_loss=float("nan"), passed=False)
    tuned = json.loads((folder.evaluation / "tuned.json").read_text())
    tuned["scores"] = {f"task {number}, {'x' * 250}/acc": estimate(0.5, None) for number in range(40)}
    (folder.evaluation / "tuned.json").write_text(json.dumps(tuned))
    write_gate(folder, passed=False, reasons=["The score fell. " * 20] * 40)
    made = register(folder)
    assert made.holder is None
    version = client_of(mlflow_server.uri).get_model_version("diverged", made.version)
    # As many characters as the columns in PostgreSQL have.
    assert version.description.endswith("… the rest is in the README.md among the version's files.")
    assert len(version.tags["shardline.gate_reasons"]) == 5000
    assert len(made.reasons) == 40
