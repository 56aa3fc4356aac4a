"""A run in MLflow: its attempts, its curves, and that it is found again."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from components.tracking.connection import connect
from components.tracking.mirror import Mirror
from tests.registering import START, ReadyRun, client_of, register, write_attempt, write_steps, write_system
from training.events import Decided, EventWriter, read_events
from training.ledger import Ledger
from training.run_folder import RunFolder


def with_attempts(folder: RunFolder) -> RunFolder:
    write_attempt(folder, 1, "oom", START - 5)
    write_attempt(folder, 2, "succeeded", START + 95)
    write_system(folder, 1, START)
    write_system(folder, 2, START + 100)
    return folder


def runs_of(client: Any, parent: str) -> list[Any]:
    experiment = client.get_run(parent).info.experiment_id
    found = client.search_runs([experiment], filter_string=f"tags.`mlflow.parentRunId` = '{parent}'")
    return sorted(found, key=lambda run: run.data.tags["shardline.attempt"])


def history(client: Any, run_id: str, key: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in client.get_metric_history(run_id, key)]


def test_a_nested_run_for_every_attempt(ready_run: ReadyRun) -> None:
    folder = with_attempts(ready_run())
    made = register(folder)
    client = client_of(made.tracking_uri)
    first, second = runs_of(client, made.mlflow_run_id)
    assert first.info.run_name == "demo attempt 1"
    assert (first.info.status, second.info.status) == ("FAILED", "FINISHED")
    assert (first.info.start_time, first.info.end_time) == ((START - 5) * 1000, (START + 45) * 1000)
    assert first.data.params == {"launcher": "local", "num_nodes": "1", "procs_per_node": "2"}
    told = {"incident": "oom", "incident_rank": "1", "exit_code": "137", "evidence": "the last words"}
    assert {key: first.data.tags[f"shardline.{key}"] for key in told} == told
    assert "shardline.incident" not in second.data.tags
    # Each its own steps; the run as a whole, every step once.
    assert [step for step, _ in history(client, first.info.run_id, "train/loss")] == [1, 2, 3, 4]
    assert [step for step, _ in history(client, second.info.run_id, "train/loss")] == [3, 4, 5, 6]
    assert [step for step, _ in history(client, made.mlflow_run_id, "train/loss")] == [1, 2, 3, 4, 5, 6]


def test_curves_over_tokens(ready_run: ReadyRun) -> None:
    folder = with_attempts(ready_run())
    made = register(folder)
    client = client_of(made.tracking_uri)
    tokens = history(client, made.mlflow_run_id, "train/tokens")
    assert tokens == [(step, 1000 * step) for step in range(1, 7)]
    by_tokens = history(client, made.mlflow_run_id, "by_tokens/train_loss")
    assert [step for step, _ in by_tokens] == [1000, 2000, 3000, 4000, 5000, 6000]
    # An attempt that resumed counts on.
    second = runs_of(client, made.mlflow_run_id)[1]
    assert history(client, second.info.run_id, "train/tokens")[0] == (3, 3000)


def test_system_metrics_have_mlflows_names(ready_run: ReadyRun) -> None:
    folder = with_attempts(ready_run())
    made = register(folder)
    client = client_of(made.tracking_uri)
    cpu = history(client, made.mlflow_run_id, "system/cpu_utilization_percentage")
    assert cpu == [(0, 50), (10, 51), (20, 52), (100, 50), (110, 51), (120, 52)]
    second = runs_of(client, made.mlflow_run_id)[1]
    assert len(history(client, second.info.run_id, "system/gpu_0_utilization_percentage")) == 3


def test_system_metrics_of_several_nodes_are_told_apart(ready_run: ReadyRun) -> None:
    folder = ready_run()
    folder.config_file.write_text(folder.config_file.read_text().replace("num_nodes: 1", "num_nodes: 2", 1))
    for node in (0, 1):
        write_system(folder, 1, START, node)
    made = register(folder)
    names = client_of(made.tracking_uri).get_run(made.mlflow_run_id).data.metrics
    assert {f"system/node-{node}/cpu_utilization_percentage" for node in (0, 1)} <= set(names)


def test_what_the_run_s_time_went_into(ready_run: ReadyRun) -> None:
    folder = with_attempts(ready_run())
    folder.timeline.write_text("<html>timeline</html>")
    decider = EventWriter(folder.events, "train", attempt=1)
    decider.write(
        Decided(time=START + 46, action="restart_elsewhere", reason="it was alone", excluded=("host-3", "host-4"))
    )
    decider.close()
    made = register(folder)
    client = client_of(made.tracking_uri)
    ledger = Ledger.of(folder)
    assert ledger.totals is not None and "recovery" in ledger.seconds
    step = round(ledger.totals.wall_s)
    assert history(client, made.mlflow_run_id, "goodput") == [(step, ledger.goodput)]
    for bucket, seconds in ledger.seconds.items():
        assert history(client, made.mlflow_run_id, f"goodput/{bucket}") == [(step, seconds)]
    (incident,) = mlflow_json(client, made.mlflow_run_id, "incidents.json")
    assert (incident["attempt"], incident["what"], incident["action"]) == (1, "oom", "restart_elsewhere")
    assert incident["excluded"] == ["host-3", "host-4"]
    names = {file.path for file in client.list_artifacts(made.mlflow_run_id)}
    assert {"incidents.json", "timeline.html"} <= names
    first, _ = runs_of(client, made.mlflow_run_id)
    told = {"decision": "restart_elsewhere", "decision_reason": "it was alone", "excluded": "host-3, host-4"}
    assert {key: first.data.tags[f"shardline.{key}"] for key in told} == told


def mlflow_json(client: Any, run_id: str, name: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return json.loads(Path(client.download_artifacts(run_id, name, folder)).read_text())


def test_logging_again_adds_nothing(ready_run: ReadyRun) -> None:
    folder = with_attempts(ready_run())
    made = register(folder)
    client = client_of(made.tracking_uri)
    ids = [made.mlflow_run_id, *(run.info.run_id for run in runs_of(client, made.mlflow_run_id))]

    def everything() -> dict[str, list[tuple[int, float]]]:
        return {
            f"{run_id} {key}": history(client, run_id, key)
            for run_id in ids
            for key in client.get_run(run_id).data.metrics
        }

    before = everything()
    assert register(folder) == made
    assert everything() == before
    assert len(runs_of(client, made.mlflow_run_id)) == 2


def test_a_resumed_run_goes_on_in_the_same_mlflow_run(ready_run: ReadyRun) -> None:
    folder = with_attempts(ready_run())
    config = folder.config()
    with connect(None, folder.root, print) as connection:
        # As the train step of a first start leaves it, which is stopped after two steps.
        early = [event for event in read_events(folder.events) if event.time < START + 2]
        mirror = Mirror(connection, folder, config, early[0].time)
        mirror.settings(config)
        mirror.write(early)
        mirror.log.end("KILLED")
        again = Mirror(connection, folder, config)
        assert again.run.info.run_id == mirror.run.info.run_id
        again.resume()
        assert connection.client.get_run(again.run.info.run_id).info.status == "RUNNING"
    write_steps(folder, attempt=3, steps=range(7, 9), start=START + 200, loss=2.0)
    made = register(folder)
    client = client_of(made.tracking_uri)
    assert made.mlflow_run_id == mirror.run.info.run_id
    assert client.get_run(made.mlflow_run_id).info.status == "FINISHED"
    assert [step for step, _ in history(client, made.mlflow_run_id, "train/loss")] == list(range(1, 9))
    assert [run.data.tags["shardline.attempt"] for run in runs_of(client, made.mlflow_run_id)] == ["1", "2", "3"]


def test_a_setting_that_changed_on_the_way_is_told(ready_run: ReadyRun) -> None:
    folder = ready_run()
    first = register(folder)
    folder.config_file.write_text(folder.config_file.read_text().replace("num_scored: 64", "num_scored: 32"))
    made = register(folder)
    assert made.mlflow_run_id == first.mlflow_run_id
    run = client_of(made.tracking_uri).get_run(made.mlflow_run_id)
    assert run.data.params["evaluation.num_scored"] == "64"
    assert run.data.tags["shardline.changed"] == "evaluation.num_scored: 32"


@pytest.mark.parametrize("outcome", ["interrupted", "preempted"])
def test_an_attempt_that_was_stopped(ready_run: ReadyRun, outcome: str) -> None:
    folder = ready_run()
    write_attempt(folder, 1, outcome, START)
    made = register(folder)
    first, unfinished = runs_of(client_of(made.tracking_uri), made.mlflow_run_id)
    assert first.info.status == "KILLED"
    assert first.data.tags["shardline.outcome"] == outcome
    # Its launcher died without a word.
    assert unfinished.info.status == "KILLED"
