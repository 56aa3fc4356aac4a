"""The commands `submit` and `schedule`: what they print, send and refuse."""

import json
import signal
import subprocess
import sys

import pytest
import yaml
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.kubeflow import submit as submission
from tests.doubles.kubeflow import FakeKubeflow
from tests.pipelines.test_schedule import GRAPH
from training.errors import UserError


@pytest.fixture
def double(tmp_path, monkeypatch):
    graph = tmp_path / "graph.yaml"
    graph.write_text(GRAPH)
    monkeypatch.setattr(submission, "GRAPH", graph)
    for name in ("KFP_TOKEN", "KFP_ENDPOINT", "KFP_NAMESPACE", "KFP_TIMEZONE"):
        monkeypatch.delenv(name, raising=False)
    with FakeKubeflow(tmp_path / "kubeflow") as double:
        monkeypatch.setenv("KF_PIPELINES_ENDPOINT", double.url)
        yield double


@pytest.fixture
def recipe(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"model": {"name": "org/model"}, "data": {"train": "org/data"}}))
    return str(file)


def run(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None, result.exception
    return result.output


def refusal(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)


def parameters(thing):
    return thing["runtime_config"]["parameters"]


def test_submit_says_which_run_it_is_and_where(double, recipe):
    output = run("submit", recipe, "-s", "training.epochs=2", "--name", "mine", "--claim", "claim")
    (sent,) = double.runs.values()
    assert output.splitlines() == [
        f"Submitted the run mine (version {submission.version_name()} of the graph)",
        f"{double.url}/#/runs/details/{sent['run_id']}",
    ]
    assert parameters(sent)["store_claim"] == "claim"
    assert json.loads(parameters(sent)["overrides"]) == ["training.epochs=2"]


def test_the_host_option_wins_over_the_environment(double, recipe, tmp_path):
    with FakeKubeflow(tmp_path / "other") as other:
        run("submit", recipe, "--host", other.url, "--experiment", "e", "--service-account", "trainer")
        assert double.runs == {}
        (sent,) = other.runs.values()
        assert sent["service_account"] == "trainer"


def test_submit_tells_a_mistake_before_it_looks_for_a_server(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KF_PIPELINES_ENDPOINT", raising=False)
    assert "did you mean 'max_steps'?" in refusal("submit", "quickstart", "-s", "training.max_step=3")
    assert "no Kubeflow Pipelines server is named" in refusal("submit", "quickstart")


def test_a_schedule_from_its_making_to_its_end(double, recipe):
    output = run("schedule", "nightly", recipe, "--cron", "30 2 * * *", "--server-timezone", "Europe/Berlin")
    lines = output.splitlines()
    version = submission.version_name()
    assert lines[0] == f"The schedule nightly is created: 0 30 2 * * *, with version {version} of the graph"
    assert lines[1] == "Next runs:" and len(lines) == 5
    assert all(
        " 02:30:00 UTC+0" in line and " Europe/Berlin  =  " in line and line.endswith(" here")
        for line in lines[2:]
    )
    (made,) = double.recurring_runs.values()
    assert parameters(made)["skip_unchanged"] is True and "run" not in parameters(made)
    assert made["pipeline_version_reference"]["pipeline_version_id"] in double.versions
    assert "unchanged" in run("schedule", "nightly", recipe, "--cron", "30 2 * * *")
    assert "replaced" in run("schedule", "nightly", recipe, "--every", "6h", "--always")
    (made,) = double.recurring_runs.values()
    assert parameters(made)["skip_unchanged"] is False
    assert run("schedule").startswith("nightly  every 21600 s  next ")
    assert run("schedule", "nightly", "--pause") == "The schedule nightly is paused.\n"
    assert run("schedule") == "nightly  every 21600 s  paused\n"
    assert "It is paused; `--resume` lets it go on." in run("schedule", "nightly", recipe, "--every", "7h")
    assert run("schedule", "nightly", "--resume") == "The schedule nightly goes on.\n"
    assert run("schedule", "nightly", "--delete") == "The schedule nightly is deleted.\n"
    assert double.recurring_runs == {}
    assert run("schedule") == f"There are no schedules at {double.url}.\n"


def test_what_a_running_run_keeps_from_being_deleted_is_told(double, recipe):
    run("schedule", "nightly", recipe, "--every", "6h")
    (key,) = double.recurring_runs
    double.fire(key, double.clock())
    assert "A run of it goes on" in run("schedule", "nightly", recipe, "--every", "7h")
    assert run("schedule", "nightly", "--delete").startswith(
        "The schedule nightly is paused.\nA run of it goes on"
    )


def test_the_time_of_the_firing_needs_the_newest_version(double, recipe):
    window = ["schedule", "daily", recipe, "--every", "1d", "-s", "data.train=/d/{scheduled:%Y-%m-%d}.jsonl"]
    assert "add --latest" in refusal(*window)
    assert double.recurring_runs == {}
    assert "the newest version of the graph" in run(*window, "--latest")
    (made,) = double.recurring_runs.values()
    assert made["pipeline_version_reference"].get("pipeline_version_id") is None
    assert json.loads(parameters(made)["overrides"]) == ["data.train=/d/[[ScheduledTime.2006-01-02]].jsonl"]


def test_the_time_of_the_firing_in_a_recipe_file(double, recipe, tmp_path):
    file = tmp_path / "window.yaml"
    file.write_text(yaml.safe_dump({"model": {"name": "m"}, "data": {"train": "/d/{scheduled:%Y}.jsonl"}}))
    run("schedule", "daily", str(file), "--every", "1d", "--latest")
    (made,) = double.recurring_runs.values()
    assert json.loads(parameters(made)["recipe"])["data"]["train"] == "/d/[[ScheduledTime.2006]].jsonl"


def test_a_version_by_its_name(double, recipe):
    run("submit", recipe)
    version = submission.version_name()
    submission.GRAPH.write_text(GRAPH + "# newer\n")
    assert f"with version {version} of the graph" in run(
        "schedule", "nightly", recipe, "--every", "1d", "--version", version
    )
    assert "has no version '9'" in refusal("schedule", "nightly", recipe, "--every", "1d", "--version", "9")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--pause"], "no schedule is named"),
        (["--cron", "0 2 * * *"], "no schedule is named"),
        (["nightly", "--pause", "--delete"], "--pause and --delete do not go together"),
        (["nightly", "quickstart", "--resume"], "--resume changes nothing else"),
        (["nightly", "--every", "1d"], "no recipe is named"),
        (["nightly", "quickstart"], "either --cron"),
        (["nightly", "quickstart", "--every", "1d", "--cron", "0 2 * * *"], "either --cron"),
        (["nightly", "quickstart", "--every", "1d", "--latest", "--version", "1"], "--latest and --version"),
        (
            ["nightly", "quickstart", "--every", "1d", "--server-timezone", "Mars/Olympus"],
            "'Mars/Olympus' is not known",
        ),
        (["nightly", "quickstart", "--every", "1d", "--server-timezone", "../x"], "is not known"),
        (["nightly", "quickstart", "--cron", "61 * * * *"], "is not valid"),
        (["nightly", "no-such-recipe", "--every", "1d"], "there is no recipe 'no-such-recipe'"),
        (["nightly", "quickstart", "--every", "1d", "-s", "training.max_step=3"], "did you mean 'max_steps'?"),
    ],
)
def test_what_schedule_refuses_without_asking_the_server(double, arguments, said):
    assert said in refusal("schedule", *arguments)
    assert double.requests == []


@pytest.mark.parametrize("command", ["submit", "schedule"])
def test_help_is_enough_to_get_by(command):
    output = run(command, "--help")
    assert "Examples:" in output and f"shardline {command}" in output and "--host" in output


def test_ctrl_c_while_the_command_still_loads_ends_it_without_a_traceback():
    program = "import os, signal, sys; sys.argv = ['shardline']; import pipelines.cli; os.kill(os.getpid(), 2)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["compile", "--output", str(tmp_path / "file")])
    assert isinstance(result.exception, UserError)
    assert "cannot be made" in str(result.exception)
