"""Registering in SQLite inside the store."""

import json
import multiprocessing
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.registering import START, aliases, client_of, register, write_evaluation
from training.errors import EXIT_INVALID
from training.events import Span, read_events
from training.run_folder import RunFolder

ReadyRun = Callable[..., RunFolder]


def test_everything_about_one_run(
    ready_run: ReadyRun, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    folder = ready_run(fresh_database=True)
    capfd.readouterr()
    made = register(folder)
    output = capfd.readouterr()
    # MLflow's own default would be a database and a folder in the working folder.
    assert list(elsewhere.iterdir()) == []
    client = client_of(f"sqlite:///{folder.root}/mlflow.db")

    run = client.get_run(made.mlflow_run_id)
    assert run.info.run_name == "demo"
    assert run.info.status == "FINISHED"
    assert run.info.start_time == START * 1000
    assert client.get_experiment(run.info.experiment_id).name == "shardline"
    assert run.info.artifact_uri.startswith((folder.root / "mlflow-artifacts").as_uri())
    assert run.data.params["training.global_batch_size"] == "8"
    assert run.data.params["model.name"] == "org/base"
    assert run.data.params["training.max_steps"] == "null"
    assert run.data.tags["shardline.run"] == "demo"
    assert run.data.tags["shardline.dataset_fingerprint"] == "d" * 16

    # Steps 3 and 4 were taken twice, and the second attempt's count.
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.timestamp) for point in losses] == [
        (1, START * 1000),
        (2, (START + 1) * 1000),
        (3, (START + 100) * 1000),
        (4, (START + 101) * 1000),
        (5, (START + 102) * 1000),
        (6, (START + 103) * 1000),
    ]
    assert [point.value for point in losses] == pytest.approx([2.9, 2.8, 1.7, 1.6, 1.5, 1.4])
    assert run.data.metrics["train/tokens_per_s"] == 2000
    assert run.data.metrics["train/supervised_tokens_per_s"] == 800
    assert {"train/grad_norm", "train/learning_rate", "train/memory_gib", "train/seconds"} <= set(run.data.metrics)
    assert run.data.metrics["base_loss"] == 2.5
    assert run.data.metrics["tuned_loss"] == 2.0
    measured = {
        "improvement": 0.5,
        "interval/improvement_low": 0.4375,
        "interval/tuned_loss_low": 1.875,
        "interval/tuned_loss_high": 2.125,
        "source/org/data/tuned_loss": 2.0,
        "score/rougeL/tuned": 0.5,
        "interval/score/rougeL/base_high": 0.5625,
        "score/arc_easy/acc/tuned": 0.25,
    }
    assert {name: run.data.metrics[name] for name in measured} == measured
    assert "interval/score/arc_easy/acc/tuned_low" not in run.data.metrics
    assert run.data.metrics["tuned_perplexity"] == pytest.approx(7.389, rel=1e-3)
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert files == {"config.yaml", "report.html", "statistics.html", "evaluation"}
    evaluation = {file.path for file in client.list_artifacts(run.info.run_id, "evaluation")}
    assert evaluation == {"evaluation/base.json", "evaluation/tuned.json"}

    version = client.get_model_version("shardline-model", "1")
    assert version.source == (folder.path / "registered").as_uri()
    assert version.run_id == made.mlflow_run_id
    assert version.tags["heldout_loss"] == "2.0"
    assert version.tags["base_loss"] == "2.5"
    assert version.tags["heldout_fingerprint"] == "e" * 16
    assert version.tags["shardline.run"] == "demo"
    assert version.tags["shardline.gate"] == "passed"
    assert version.tags["shardline.gate_reasons"] == "The held-out loss fell."
    assert version.tags["shardline.model_license"] == "apache-2.0"
    assert "licence apache-2.0" in version.description
    assert "    - `org/data` at revision `abc123`: conversations, 40 rows, 4,000 tokens" in version.description
    assert "at revision `abc123`" in version.description
    assert "6 steps to a training loss of 1.4" in version.description
    assert aliases(client.tracking_uri) == {"champion": "1", "candidate": "1"}

    assert made.uri == "models:/shardline-model/1"
    record = json.loads((folder.path / "registration.json").read_text())
    assert record == {
        "name": "shardline-model",
        "version": "1",
        "alias_moved": True,
        "tracking_uri": f"sqlite:///{folder.root}/mlflow.db",
        "alias": "champion",
        "holder": "1",
        "reasons": list(made.reasons),
        "mlflow_run_id": made.mlflow_run_id,
    }
    assert "| held-out, 1,234 tokens | base | tuned | tuned − base |" in made.summary
    row = "| loss (nats per token) | 2.5 (2.375 to 2.625) | 2 (1.875 to 2.125) | -0.5 (-0.5625 to -0.4375) |"
    assert row in made.summary
    assert row in version.description
    assert (
        "| rougeL | 0.5 (0.4375 to 0.5625) | 0.5 (0.4375 to 0.5625) | +0.25 (+0.125 to +0.375) |" in made.summary
    )
    assert "mlflow.pyfunc.load_model('models:/shardline-model/1')" in version.description
    assert detail(folder) == "shardline-model version 1, champion"
    # People see our lines and nothing of MLflow's.
    assert output.err == ""
    assert [line[:33] for line in output.out.splitlines()] == [
        "setting up the MLflow database (a",
        "shardline-model version 1, champi",
    ]


def test_a_second_run_of_the_step_makes_nothing_new(ready_run: ReadyRun) -> None:
    folder = ready_run()
    first, second = register(folder), register(folder)
    assert second == first
    client = client_of(first.tracking_uri)
    # The run and its two attempts.
    assert len(client.search_runs(["0", "1"])) == 3
    assert len(client.search_model_versions()) == 1
    assert len(client.get_metric_history(first.mlflow_run_id, "train/loss")) == 6
    assert len(client.get_metric_history(first.mlflow_run_id, "tuned_loss")) == 1


def test_the_alias_stays_when_the_gate_did_not_pass(ready_run: ReadyRun) -> None:
    register(ready_run("first"))
    folder = ready_run("second", passed=False, champion="1")
    worse = register(folder)
    client = client_of(worse.tracking_uri)
    assert aliases(client.tracking_uri) == {"champion": "1", "candidate": "2"}
    assert not worse.alias_moved
    assert client.get_model_version("shardline-model", "2").tags["shardline.gate"] == "failed"
    assert detail(folder) == "shardline-model version 2, champion stays with version 1"
    assert "The held-out loss rose." in worse.summary
    assert "| held-out, 1,234 tokens | base | champion | tuned | tuned − base |" in worse.summary

    better = register(ready_run("third", champion="1"))
    assert better.alias_moved
    assert client.get_run(better.mlflow_run_id).data.metrics["champion_loss"] == 2.1


def test_no_champion_at_all(ready_run: ReadyRun) -> None:
    folder = ready_run(passed=False)
    made = register(folder)
    assert made.holder is None
    assert detail(folder) == "shardline-model version 1, no champion yet"
    assert aliases(made.tracking_uri) == {"candidate": "1"}


def test_the_alias_stays_with_a_version_that_was_not_compared_with(ready_run: ReadyRun) -> None:
    register(ready_run("first"))
    # Evaluated when there was no champion yet, as two runs at the same time are.
    folder = ready_run("second")
    made = register(folder)
    assert made.holder == "1"
    assert made.reasons[-1].startswith(
        "The alias champion belongs to version 1 now, but the tuned model was compared with no version: run the "
        "evaluate step again"
    )
    assert (
        client_of(made.tracking_uri).get_model_version("shardline-model", "2").tags["shardline.gate"] == "failed"
    )

    # What the sentence asks for.
    write_evaluation(folder, base_loss=2.5, tuned_loss=2.0, champion="1")
    again = register(folder)
    assert (again.version, again.holder) == ("2", "2")


def test_a_run_that_is_not_to_be_compared_takes_the_alias(ready_run: ReadyRun) -> None:
    register(ready_run("first"))
    made = register(ready_run("second", evaluation={"champion": False}))
    assert made.holder == "2"
    assert made.reasons[-1] == (
        "The alias champion moves from version 1, which the tuned model was not compared with, since "
        "evaluation.champion is false."
    )


def test_a_rerun_does_not_take_back_an_alias_that_moved_on(ready_run: ReadyRun) -> None:
    folder = ready_run("first")
    register(folder)
    register(ready_run("second", champion="1"))
    again = register(folder)
    assert again.version == "1"
    assert again.holder == "2"
    assert detail(folder) == "shardline-model version 1, champion stays with version 2"

    # A new measurement is judged anew.
    write_evaluation(folder, base_loss=2.5, tuned_loss=1.5, champion="2")
    assert register(folder).holder == "1"
    assert client_of(again.tracking_uri).get_model_version("shardline-model", "1").tags["heldout_loss"] == "1.5"


def test_a_step_that_died_after_making_the_version_is_completed(
    ready_run: ReadyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ready_run()

    def die(*_: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("components.register_model.register.carry_out", die)
        register(folder)
    made = register(folder)
    assert made.version == "1"
    assert made.alias_moved


def test_a_run_of_the_same_name_in_another_store_is_another_run(ready_run: ReadyRun, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/shared.db"
    first = register(ready_run(tracking_uri=uri, root=tmp_path / "a"))
    second = register(ready_run(tracking_uri=uri, root=tmp_path / "b"))
    assert second.mlflow_run_id != first.mlflow_run_id
    assert (first.version, second.version) == ("1", "2")


def test_a_long_setting_is_cut_among_the_params_and_whole_in_the_file(ready_run: ReadyRun) -> None:
    path = "x" * 5000
    folder = ready_run()
    text = folder.config_file.read_text()
    folder.config_file.write_text(text.replace("train: org/data", f"train: {path}"))
    made = register(folder)
    client = client_of(made.tracking_uri)
    assert client.get_run(made.mlflow_run_id).data.params["data.train"] == "x" * 499 + "…"
    assert path in Path(client.download_artifacts(made.mlflow_run_id, "config.yaml")).read_text()


def test_two_runs_set_up_the_database_at_once(ready_run: ReadyRun) -> None:
    folders = [ready_run(run, fresh_database=True) for run in ("first", "second")]
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=register, args=(folder,)) for folder in folders]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    versions = [json.loads((folder.path / "registration.json").read_text())["version"] for folder in folders]
    assert sorted(versions) == ["1", "2"]


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("config.yaml", "run the preflight step first"),
        ("inputs/model", "run the step download_model first"),
        ("model", "run the train step again"),
        ("model/model.safetensors", "run the train step again"),
        ("evaluation/base.json", "the evaluation of the base model is missing"),
        ("evaluation/tuned.json", "run the evaluate step first"),
        ("evaluation/gate.json", "the gate's decision is missing"),
    ],
)
def test_an_earlier_step_is_missing(
    ready_run: ReadyRun, capsys: pytest.CaptureFixture[str], missing: str, said: str
) -> None:
    folder = ready_run(fresh_database=True)
    path = folder.path / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(SystemExit) as ended:
        register(folder)
    assert ended.value.code == EXIT_INVALID
    assert said in capsys.readouterr().err
    assert not (folder.root / "mlflow.db").exists()


def detail(folder: RunFolder) -> str:
    spans = [event for event in read_events(folder.events) if isinstance(event, Span) and event.phase == "end"]
    return spans[-1].detail
