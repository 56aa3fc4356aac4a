"""The notebooks in a real kernel: on this machine, through Kubeflow, and over the MLflow runs of both."""

import base64
import json
import re

import pytest

from tests.doubles.cluster import FakeCluster
from tests.doubles.kubeflow import FakeKubeflow
from tests.notebooks.notebooks import cell_with, execute, printed, shown
from tests.pipelines.conftest import workplace  # noqa: F401  (a fixture)
from training.history import read_history
from training.run_folder import RunFolder

pytestmark = pytest.mark.slow

QUESTION = "Why is my loss NaN?"


@pytest.fixture(scope="module", autouse=True)
def jupyter(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        for name in ("KFP_TOKEN", "KFP_NAMESPACE", "KFP_ENDPOINT", "KF_PIPELINES_ENDPOINT", "SHARDLINE_STORE"):
            patch.delenv(name, raising=False)
        yield patch


@pytest.fixture(scope="module")
def store(workplace):  # noqa: F811
    return workplace / "store"


@pytest.fixture(scope="module")
def kubeflow(tmp_path_factory, jupyter, store):
    folder = tmp_path_factory.mktemp("kubeflow")
    with FakeCluster(folder / "cluster") as cluster:
        jupyter.setenv("KUBECONFIG", str(cluster.kubeconfig))
        cluster.add_claim("shardline-store")
        with FakeKubeflow(folder / "kubeflow", execute=True) as kubeflow:
            kubeflow.claim = store  # where the run on this machine is too, and both runs' MLflow
            yield kubeflow


@pytest.fixture(scope="module")
def executed(workplace, kubeflow, store):  # noqa: F811
    """The first two notebooks, at the same time."""
    recipe = str(workplace / "tiny.yaml")
    here = ["cluster.launcher=local", "parallel.procs_per_node=1"]
    there = [
        "cluster.launcher=pytorchjob",
        "cluster.gpus_per_node=0",
        "parallel.num_nodes=2",
        "parallel.procs_per_node=1",
        "training.learning_rate=0.005",
    ]
    return execute(
        workplace / "notebooks",
        quickstart={"RECIPE": recipe, "OVERRIDES": here, "STORE": str(store), "QUESTION": QUESTION},
        submit={"RECIPE": recipe, "OVERRIDES": there, "STORE": str(store), "HOST": kubeflow.url},
    )


def run_of(notebook):
    """The run that the quick start's notebook made."""
    return re.search(r"Starting the run \x1b\[1m(\S+)\x1b", printed(cell_with(notebook, "run_here("))).group(1)


def is_picture(text):
    return base64.b64decode(text).startswith(b"\x89PNG") and len(text) > 10_000


def test_the_quick_start_runs_the_graph_and_shows_what_came_of_it(executed, store):
    local, _ = executed
    name = run_of(local)
    progress = printed(cell_with(local, "run_here("))
    assert "Starting the run" in progress and "step 6/6" in progress
    assert all(step in progress for step in ("preflight", "train", "evaluate", "register_model"))
    (picture,) = shown(cell_with(local, "training_figure"), "image/png")
    assert is_picture(picture)
    (table,) = shown(cell_with(local, "answers"), "text/html")
    tuned = json.loads((store / "runs" / name / "evaluation" / "tuned.json").read_text())
    assert table.count("<tr>") == 1 + len(tuned["generations"])
    registered = json.loads((store / "runs" / name / "registration.json").read_text())
    told = printed(cell_with(local, "registration.json"))
    assert told.startswith(f"tiny version {registered['version']}; champion: version {registered['version']}\n")
    assert "torch.bfloat16" in printed(cell_with(local, "from_pretrained"))
    assert cell_with(local, "model.generate").outputs[0].output_type == "stream"


def test_a_run_is_submitted_followed_and_scheduled(executed, kubeflow, store):
    _, submitted = executed
    (sent,) = kubeflow.runs.values()
    assert sent["state"] == "SUCCEEDED", kubeflow.log(sent["run_id"])[-4000:]
    name, url = printed(cell_with(submitted, "submit(kubeflow")).split()
    assert name == sent["display_name"] and url.endswith(sent["run_id"])
    (picture,) = shown(cell_with(submitted, "watch_submitted("), "image/png")
    assert is_picture(picture)
    (page,) = shown(cell_with(submitted, "Markdown(outcome_page"), "text/markdown")
    assert page.startswith(f"**{name}** succeeded")
    assert f"the run '{name}' has no unfinished job" in printed(cell_with(submitted, "stop_all"))
    assert printed(cell_with(submitted, "list_schedules(kubeflow")).startswith(
        "notebook-example  0 30 2 * * *  next "
    )
    assert kubeflow.recurring_runs == {}, "running all cells leaves no schedule"
    history = read_history(RunFolder(store, name).events)
    assert [step.step for step in history.steps] == [1, 2, 3, 4, 5, 6] and history.steps[0].num_devices == 2


def test_runs_are_compared_and_the_champion_is_loaded(executed, workplace, store):  # noqa: F811
    local, submitted = executed
    mlflow = f"sqlite:///{store}/mlflow.db"
    (notebook,) = execute(
        workplace / "notebooks", compare={"TRACKING_URI": mlflow, "MODEL": "tiny", "QUESTION": QUESTION}
    )
    first, second = run_of(local), printed(cell_with(submitted, "submit(kubeflow")).split()[0]
    names = printed(cell_with(notebook, "mlflow.search_runs"))
    assert "2 runs: " in names and first in names and second in names
    (table,) = shown(cell_with(notebook, "settings = "), "text/html")
    told = (first, second, "training.learning_rate", "0.005", "tuned_loss", "score/rougeL/tuned")
    assert all(text in table for text in told)
    assert "training.seed" not in table and "launcher" not in table, "what differs in the training"
    (picture,) = shown(cell_with(notebook, "comparison_figure"), "image/png")
    assert is_picture(picture)
    # The greater learning rate learns more in so few steps, whichever run ended first.
    champion = printed(cell_with(notebook, "get_model_version_by_alias"))
    assert champion.startswith("tiny version ") and f" of the run {first}\n" in champion
    assert " parameters, torch.bfloat16" in printed(cell_with(notebook, "load_model"))
    assert cell_with(notebook, "pipeline(chat").outputs[-1].output_type == "stream"
