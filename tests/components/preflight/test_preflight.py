import json
import socket
import sys
import threading
import time
import types
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from components.preflight import checks
from components.preflight.component import preflight
from components.preflight.prepare import prepare
from components.step import Step
from tests.doubles.hub import serve_hub
from tests.doubles.models import save_tiny_model
from training.errors import EXIT_INVALID, UserError
from training.events import Note, Span, read_events
from training.health.policy import policy_of
from training.run_folder import RunFolder
from training.store import Store

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "train.jsonl"
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    path.write_text(json.dumps(row) + "\n")
    return path


@pytest.fixture
def write_recipe(tmp_path, model, data):
    def write(**sections):
        recipe = {"model": {"name": str(model)}, "data": {"train": str(data)}}
        for section, fields in sections.items():
            recipe[section] = {**recipe.get(section, {}), **fields}
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(recipe))
        return str(path)

    return write


@pytest.fixture
def step(tmp_path):
    return new_step(tmp_path)


def new_step(tmp_path, run="a-run"):
    return Step("preflight", str(tmp_path / "store"), run)


def problems(call):
    with pytest.raises(UserError) as caught:
        call()
    return str(caught.value).splitlines()


@contextmanager
def server(status, wait=None):
    """An HTTP server that answers every request with a status, or not at all before `wait` is set."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if wait is not None:
                wait.wait(30)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args):
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        if wait is not None:
            wait.set()
        http.shutdown()
        http.server_close()


# What people see


def test_a_run_that_can_go_on_is_told_as_markdown_and_has_a_folder(step, write_recipe, model, data):
    markdown = prepare(step, write_recipe(), "training.seed=7", {}).page
    lines = markdown.splitlines()
    assert lines[0] == "## a-run"
    subjects = [line.split(" | ")[0] for line in lines if line.startswith("| ")]
    assert subjects == ["| check", "| model", "| data", "| ranks", "| store", "| registry"]
    assert f"| model | {model} (LocalFolder) |" in lines
    shown = yaml.safe_load(markdown.partition("```yaml\n")[2].partition("```")[0])
    assert shown["training"]["seed"] == 7
    assert shown == step.folder.config().model_dump(mode="json")
    assert step.detail == f"{model} on {data}"
    notes = [event.text for event in read_events(step.folder.events) if isinstance(event, Note)]
    assert [note.partition(":")[0] for note in notes] == ["model", "data", "ranks", "store", "registry"]


def test_tasks_are_looked_for(step, write_recipe, tmp_path):
    task = tmp_path / "own.yaml"
    recipe = write_recipe(evaluation={"tasks": [str(task)]})
    (problem,) = problems(lambda: prepare(step, recipe, "", {}))
    assert f"evaluation.tasks names {task}, which cannot be read" in problem
    task.write_text("task: own\n")
    assert f"| tasks | {task} |" in prepare(step, recipe, "", {}).page


def test_what_is_found_cannot_break_the_table(step, write_recipe, data):
    odd = data.rename(data.with_name("a|b `c`.jsonl"))
    markdown = prepare(step, write_recipe(data={"train": str(odd)}), "", {}).page
    (row,) = [line for line in markdown.splitlines() if line.startswith("| data |")]
    assert row.count("|") == 3


def test_the_component_runs_as_kubeflow_calls_it(tmp_path, write_recipe):
    class Markdown:
        path = str(tmp_path / "config.md")

    parameters = {
        **dict.fromkeys(
            ("model", "model_revision", "train_data", "heldout_data", "precision", "strategy", "registered_model"),
            "",
        ),
        **dict.fromkeys(("epochs", "learning_rate"), 0.0),
        **dict.fromkeys(("global_batch_size", "sequence_length", "num_nodes", "procs_per_node"), 0),
        "max_steps": 3.0,
        "mlflow_tracking_uri": "",
        "store_claim": "shardline-store",
        "skip_unchanged": False,
        "overrides": "training.seed=5; registry.alias=prod",
    }
    name = preflight.python_func(
        store=str(tmp_path / "store"),
        run="",
        job="Run of ünï 1",
        recipe=write_recipe(),
        config=Markdown,
        **parameters,
    )
    assert name == "run-of-n-1"
    config = RunFolder(tmp_path / "store", name).config()
    assert (config.training.max_steps, config.training.seed, config.registry.alias) == (3, 5, "prod")
    assert "## run-of-n-1" in (tmp_path / "config.md").read_text(encoding="utf-8")


# Parameters


def test_a_parameter_that_is_empty_or_zero_keeps_the_recipes_value(step, write_recipe):
    recipe = write_recipe(
        training={"epochs": 3, "max_steps": 9, "precision": "fp32"}, registry={"model_name": "mine"}
    )
    flat = {
        "training.epochs": 0.0,
        "training.max_steps": 0,
        "training.precision": "",
        "registry.model_name": "",
        "registry.tracking_uri": "",
        "parallel.procs_per_node": 0.0,
    }
    prepare(step, recipe, "", flat)
    config = step.folder.config()
    assert (config.training.epochs, config.training.max_steps, config.training.precision) == (3, 9, "fp32")
    assert config.registry.model_name == "mine"
    assert config.registry.tracking_uri is None


def test_blanks_that_came_along_with_a_parameter_are_left_out(step, write_recipe):
    flat = {"registry.model_name": " mine\n", "training.precision": "  "}
    prepare(step, write_recipe(training={"precision": "fp32"}), "", flat)
    config = step.folder.config()
    assert (config.registry.model_name, config.training.precision) == ("mine", "fp32")


def test_a_whole_number_that_kubeflow_passes_as_a_float_is_taken(step, write_recipe):
    flat = {"training.global_batch_size": 4.0, "training.max_steps": 5.0, "parallel.procs_per_node": 2.0}
    prepare(step, write_recipe(), "", flat)
    assert step.folder.config().training.global_batch_size == 4
    assert step.folder.config().parallel.procs_per_node == 2


def test_a_parameter_wins_over_an_override_and_that_over_the_recipe(step, write_recipe):
    recipe = write_recipe(training={"seed": 1, "max_steps": 1, "epochs": 1})
    prepare(step, recipe, "training.seed=2\ntraining.max_steps=2", {"training.max_steps": 3})
    training = step.folder.config().training
    assert (training.epochs, training.seed, training.max_steps) == (1, 2, 3)


def test_problems_of_overrides_and_parameters_are_told_together(step, write_recipe):
    found = problems(lambda: prepare(step, write_recipe(), "training.sede=1;model.nme=x", {"training.epochs": -1}))
    assert len(found) == 3
    assert not step.folder.config_file.exists()


def test_a_name_that_is_too_long_to_look_for_is_told(step, write_recipe):
    assert any(
        "File name too long" in problem
        for problem in problems(lambda: prepare(step, write_recipe(), "", {"model.name": "a" * 5000}))
    )


def test_a_recipe_that_does_not_exist_is_told(step):
    (problem,) = problems(lambda: prepare(step, "quickstrt", "", {}))
    assert "did you mean 'quickstart'?" in problem


# The world


def test_everything_that_is_missing_is_told_at_once(step, write_recipe, monkeypatch):
    monkeypatch.setattr(checks, "processes_per_node", lambda: 3)
    recipe = write_recipe(
        model={"name": "/no/such/model"},
        data={"train": "/no/such/data.jsonl"},
        training={"global_batch_size": 8},
        registry={"tracking_uri": "http://127.0.0.1:1"},
    )
    model, data, ranks, registry = problems(lambda: prepare(step, recipe, "", {}))
    assert "/no/such/model" in model
    assert "/no/such/data.jsonl" in data
    assert "not a multiple of 3 ranks" in ranks
    assert "registry.tracking_uri" in registry
    assert not step.folder.config_file.exists()


def test_what_is_missing_ends_the_step_with_its_exit_code_and_without_a_traceback(tmp_path, write_recipe, capsys):
    recipe = write_recipe(model={"name": "/no/such/model"})
    with pytest.raises(SystemExit) as left, new_step(tmp_path) as step:
        prepare(step, recipe, "", {})
    assert left.value.code == EXIT_INVALID
    assert "Traceback" not in capsys.readouterr().err
    end = [event for event in read_events(step.folder.events) if isinstance(event, Span)][-1]
    assert "/no/such/model" in end.detail


def test_heldout_data_that_is_missing_is_told(step, write_recipe):
    (problem,) = problems(lambda: prepare(step, write_recipe(data={"heldout": "/no/held.jsonl"}), "", {}))
    assert "data.heldout is '/no/held.jsonl'" in problem


def test_a_store_with_little_space_is_told(step, write_recipe, monkeypatch):
    monkeypatch.setattr(checks, "_MIN_FREE_BYTES", 2**80)
    (problem,) = problems(lambda: prepare(step, write_recipe(), "", {}))
    assert str(step.folder.root) in problem
    assert "free" in problem


# MLflow


def test_an_mlflow_server_that_answers_is_told(step, write_recipe):
    with server(200) as uri:
        markdown = prepare(step, write_recipe(registry={"tracking_uri": uri + "/"}), "", {}).page
    assert "| registry | an MLflow server that answers |" in markdown


def test_an_mlflow_server_that_fails_is_told_with_its_status(step, write_recipe):
    with server(500) as uri:
        (problem,) = problems(lambda: prepare(step, write_recipe(registry={"tracking_uri": uri}), "", {}))
    assert "HTTP 500" in problem


def test_an_mlflow_server_that_does_not_listen_is_told_within_seconds(step, write_recipe):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{unused.getsockname()[1]}"
        began = time.monotonic()
        (problem,) = problems(lambda: prepare(step, write_recipe(registry={"tracking_uri": uri}), "", {}))
    assert "no answer from the MLflow server" in problem
    assert time.monotonic() - began < 5


def test_an_mlflow_server_that_is_silent_is_told_within_seconds(step, write_recipe, monkeypatch):
    assert checks._SERVER_TIMEOUT_S <= 10
    monkeypatch.setattr(checks, "_SERVER_TIMEOUT_S", 0.3)
    with server(200, wait=threading.Event()) as uri:
        (problem,) = problems(lambda: prepare(step, write_recipe(registry={"tracking_uri": uri}), "", {}))
    assert "no answer" in problem
    assert "ReadTimeout" in problem


@pytest.mark.parametrize("uri", ["http://no-such-host.invalid", "http://", "https://[", "http://127.0.0.1:99999"])
def test_an_address_that_can_be_no_server_is_told(step, write_recipe, uri):
    (problem,) = problems(lambda: prepare(step, write_recipe(registry={"tracking_uri": uri}), "", {}))
    assert "registry.tracking_uri" in problem


@pytest.mark.parametrize(
    "uri",
    [
        *("mlflow:5000", "localhost:5000", "mlflow.example", "/data/mlruns", "file:///data/mlruns"),
        *("foo://bar", "ftp://host/x", "oracle://db/mlflow", "postgresql+nodriver://db/mlflow", "sqlite:x", "://"),
    ],
)
def test_an_address_that_mlflow_cannot_open_is_told_before_the_training(step, write_recipe, uri):
    (problem,) = problems(lambda: prepare(step, write_recipe(registry={"tracking_uri": uri}), "", {}))
    assert f"registry.tracking_uri is '{uri}'" in problem
    assert "http(s)://HOST:PORT" in problem


def test_a_database_whose_driver_is_not_installed_is_told_before_the_training(step, write_recipe):
    recipe = write_recipe(registry={"tracking_uri": "mssql+pymssql://db/mlflow"})
    (problem,) = problems(lambda: prepare(step, recipe, "", {}))
    assert "cannot be imported (No module named 'pymssql')" in problem


@pytest.mark.parametrize("uri", ["sqlite:////data/mlflow.db", "postgresql+psycopg2://db/mlflow", "databricks"])
def test_other_places_that_mlflow_opens_are_left_to_mlflow(step, write_recipe, uri, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg2", types.ModuleType("psycopg2"))
    prepare(step, write_recipe(registry={"tracking_uri": uri}), "", {})
    assert step.folder.config().registry.tracking_uri == uri


# Runs that go on


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with serve_hub(monkeypatch, tmp_path / "cache") as hub:
        hub.add(
            "models",
            "org/model",
            {"config.json": "{}", "model.safetensors": "x", "tokenizer.json": "{}"},
            commit=OLD,
        )
        yield hub


def test_a_branch_is_pinned_to_the_commit_that_it_stands_for(step, write_recipe, hub):
    prepare(step, write_recipe(model={"name": "org/model"}), "", {})
    assert step.folder.config().model.revision == OLD


def test_a_run_that_goes_on_keeps_its_pins_when_the_branch_has_moved(tmp_path, write_recipe, hub):
    recipe = write_recipe(model={"name": "org/model"})
    prepare(new_step(tmp_path), recipe, "", {})
    hub.repos["models", "org/model"].commit = NEW
    again = new_step(tmp_path)
    prepare(again, recipe, "", {})
    assert again.folder.config().model.revision == OLD
    other = new_step(tmp_path, "another-run")
    prepare(other, recipe, "", {})
    assert other.folder.config().model.revision == NEW


def test_a_run_that_goes_on_with_the_same_settings_changes_nothing(tmp_path, write_recipe):
    markdowns = [prepare(new_step(tmp_path), write_recipe(), "training.seed=3", {}).page for _ in range(2)]
    assert markdowns[0].partition("### Configuration")[2] == markdowns[1].partition("### Configuration")[2]


def test_a_run_that_goes_on_with_other_settings_is_refused_by_their_names(tmp_path, write_recipe):
    prepare(new_step(tmp_path), write_recipe(), "", {})
    (problem,) = problems(lambda: prepare(new_step(tmp_path), write_recipe(), "training.seed=8", {}))
    assert "exists with another configuration (training.seed;" in problem


def test_a_run_that_goes_on_with_another_model_is_told_of_the_model_and_not_of_its_pin(
    tmp_path, write_recipe, hub, model
):
    prepare(new_step(tmp_path), write_recipe(model={"name": "org/model"}), "", {})
    (problem,) = problems(lambda: prepare(new_step(tmp_path), write_recipe(model={"name": str(model)}), "", {}))
    assert "another configuration (model.name, model.revision;" in problem


def test_a_run_whose_config_was_edited_is_told(step, write_recipe):
    prepare(step, write_recipe(), "", {})
    step.folder.config_file.write_text("model: [")
    (problem, *_) = problems(lambda: prepare(step, write_recipe(), "", {}))
    assert str(step.folder.config_file) in problem


def test_preparing_makes_the_store(step, write_recipe):
    prepare(step, write_recipe(), "", {})
    assert Store(step.folder.root).sweep() == []


def test_a_macro_that_kubeflow_left_is_refused(step, write_recipe):
    (problem,) = problems(lambda: prepare(step, write_recipe(), "data.train=/d/[[ScheduledTime.2006]].jsonl", {}))
    assert "shardline schedule --latest" in problem


def test_a_recipe_can_come_as_its_own_text(step, write_recipe, model):
    text = json.dumps(yaml.safe_load(Path(write_recipe(training={"seed": 9})).read_text()))
    prepare(step, text, "", {})
    assert step.folder.config().training.seed == 9
    (problem,) = problems(lambda: prepare(step, "{model: [", "", {}))
    assert "the recipe that was given as text is not valid YAML" in problem


# The health policy


def test_a_health_policy_is_checked_and_kept_in_the_runs_folder(step, tmp_path, write_recipe):
    policy = tmp_path / "policy.yaml"
    policy.write_text("xids: {31: reset}")
    with step:
        prepare(step, write_recipe(resilience={"health_policy": str(policy)}), "", {})
    policy.unlink()
    assert policy_of(step.folder).xids[31].action == "reset"


def test_a_health_policy_with_an_unknown_xid_is_refused_before_anything_is_made(step, tmp_path, write_recipe):
    (tmp_path / "policy.yaml").write_text("xids: {78: reset}")
    recipe = write_recipe(resilience={"health_policy": str(tmp_path / "policy.yaml")})
    with pytest.raises(UserError, match="no rule for the XID 78; the nearest is 79"):
        prepare(step, recipe, "", {})
    assert not step.folder.config_file.exists()
