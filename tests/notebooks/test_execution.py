"""The notebooks in a real kernel: on this machine, through Kubeflow, and over the MLflow runs of both."""

import base64
import json

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
def tracking(store):
    return f"sqlite:///{store}/mlflow.db"


@pytest.fixture(scope="module")
def local(workplace, store):  # noqa: F811
    return execute(
        "01-quickstart-local.ipynb",
        workplace / "notebook",
        RECIPE=str(workplace / "tiny.yaml"),
        OVERRIDES=["parallel.procs_per_node=1"],
        STORE=str(store),
        QUESTION=QUESTION,
    )


@pytest.fixture(scope="module")
def kubeflow(tmp_path_factory, jupyter):
    folder = tmp_path_factory.mktemp("kubeflow")
    with FakeCluster(folder / "cluster") as cluster:
        jupyter.setenv("KUBECONFIG", str(cluster.kubeconfig))
        cluster.add_claim("shardline-store")
        with FakeKubeflow(folder / "kubeflow", execute=True) as kubeflow:
            yield kubeflow


@pytest.fixture(scope="module")
def submitted(local, workplace, kubeflow, tracking):  # noqa: F811  (after the first, which makes the database)
    settings = {
        "cluster.launcher": "pytorchjob",
        "cluster.gpus_per_node": 0,
        "parallel.num_nodes": 2,
        "parallel.procs_per_node": 1,
        "training.learning_rate": 0.005,
        "registry.tracking_uri": tracking,
    }
    return execute(
        "02-submit-to-kubeflow.ipynb",
        workplace / "notebook",
        RECIPE=str(workplace / "tiny.yaml"),
        OVERRIDES=[f"{key}={value}" for key, value in settings.items()],
        HOST=kubeflow.url,
        STORE=str(kubeflow.claim),
    )


def is_picture(text):
    return base64.b64decode(text).startswith(b"\x89PNG") and len(text) > 10_000


def test_the_quick_start_runs_the_graph_and_shows_what_came_of_it(local, store):
    (name,) = [path.name for path in (store / "runs").iterdir()]
    progress = printed(cell_with(local, "run_here("))
    assert "Starting the run" in progress and name in progress and "step 6/6" in progress
    assert all(step in progress for step in ("preflight", "train", "evaluate", "register_model"))
    (picture,) = shown(cell_with(local, "training_figure"), "image/png")
    assert is_picture(picture)
    (table,) = shown(cell_with(local, "answers"), "text/html")
    tuned = json.loads((store / "runs" / name / "evaluation" / "tuned.json").read_text())
    assert table.count("<tr>") == 1 + len(tuned["generations"])
    assert printed(cell_with(local, "registration.json")).startswith("tiny version 1; champion: version 1\n")
    assert "torch.bfloat16" in printed(cell_with(local, "from_pretrained"))
    assert cell_with(local, "model.generate").outputs[0].output_type == "stream"


def test_a_run_is_submitted_followed_and_scheduled(submitted, kubeflow):
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
    history = read_history(RunFolder(kubeflow.claim, name).events)
    assert [step.step for step in history.steps] == [1, 2, 3, 4, 5, 6] and history.steps[0].num_devices == 2


def test_runs_are_compared_and_the_champion_is_loaded(local, submitted, workplace, store, tracking):  # noqa: F811
    notebook = execute(
        "03-compare-runs-in-mlflow.ipynb",
        workplace / "notebook",
        TRACKING_URI=tracking,
        MODEL="tiny",
        QUESTION=QUESTION,
    )
    (first,) = [path.name for path in (store / "runs").iterdir()]
    second = printed(cell_with(submitted, "submit(kubeflow")).split()[0]
    names = printed(cell_with(notebook, "mlflow.search_runs"))
    assert "2 runs: " in names and first in names and second in names
    (table,) = shown(cell_with(notebook, "settings = "), "text/html")
    assert all(text in table for text in (first, second, "training.learning_rate", "0.005", "tuned_loss"))
    assert "training.seed" not in table, "only settings that differ"
    (picture,) = shown(cell_with(notebook, "comparison_figure"), "image/png")
    assert is_picture(picture)
    # The faster learner of the two, by the gate's own measure.
    champion = printed(cell_with(notebook, "get_model_version_by_alias"))
    assert champion.startswith(f"tiny version 1 of the run {first}\n")
    assert str(store / "runs" / first / "model") in printed(cell_with(notebook, "download_artifacts"))
    assert cell_with(notebook, "model.generate").outputs[0].output_type == "stream"
