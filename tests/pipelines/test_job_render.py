"""`shardline render`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.jobs.render import STORE_CLAIM
from tests.doubles.cluster import FakeCluster
from training.errors import UserError

ROOT = Path(__file__).parents[2]
RANKS = ("-s", "parallel.procs_per_node=8", "-s", "training.global_batch_size=16")


def render(*arguments):
    result = CliRunner().invoke(app, ["render", *map(str, arguments)])
    assert result.exit_code == 0, (result.output, result.exception)
    return yaml.safe_load(result.output)


def mistake(*arguments):
    result = CliRunner().invoke(app, ["render", *map(str, arguments)])
    assert isinstance(result.exception, UserError), (result.output, result.exception)
    return str(result.exception)


def test_the_job_is_printed_as_the_step_train_would_make_it():
    job = render("quickstart", *RANKS, "-s", "parallel.num_nodes=2", "--name", "my-run", "--attempt", 3)
    assert job["kind"] == "PyTorchJob"
    assert job["metadata"]["name"] == "my-run-3" and job["metadata"]["namespace"] == "default"
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert worker["replicas"] == 2 and job["spec"]["nprocPerNode"] == "8"
    (container,) = worker["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "training.node", "/mnt/shardline/runs/my-run"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    claims = [v["persistentVolumeClaim"]["claimName"] for v in worker["template"]["spec"]["volumes"][:1]]
    assert claims == [STORE_CLAIM]


def test_options_win_over_the_recipe_and_the_recipe_over_defaults(tmp_path):
    recipe = tmp_path / "My Recipe.yaml"
    recipe.write_text(
        "model: {name: org/model}\ndata: {train: /data}\nparallel: {procs_per_node: 1}\n"
        "cluster: {launcher: trainjob, namespace: ml, store_claim: claim}\n"
    )
    job = render(recipe)
    assert (job["kind"], job["metadata"]["name"], job["metadata"]["namespace"]) == (
        "TrainJob",
        "my-recipe-1",
        "ml",
    )
    job = render(recipe, "--kind", "pytorchjob", "--namespace", "other", "--store", "/store")
    assert (job["kind"], job["metadata"]["namespace"]) == ("PyTorchJob", "other")
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert spec["volumes"][0]["persistentVolumeClaim"]["claimName"] == "claim"
    assert spec["containers"][0]["volumeMounts"][0]["mountPath"] == "/store"


def test_secrets_stay_references_and_the_environments_are_not_looked_at(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    text = json.dumps(render(*RANKS, "-s", "cluster.secrets={HF_TOKEN: hub/token}"))
    assert "hf_verysecret" not in text and '"secretKeyRef": {"name": "hub", "key": "token"}' in text


def test_a_file_is_written_and_a_cluster_takes_it(tmp_path, monkeypatch):
    file = tmp_path / "job.yaml"
    result = CliRunner().invoke(
        app, ["render", *RANKS, "--name", "my-run", "--namespace", "demo", "-o", str(file)]
    )
    assert result.output == f"{file}\n"
    with FakeCluster(tmp_path / "cluster", operator=True) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        from components.cluster.client import connect
        from components.cluster.jobs import create_job
        from components.cluster.kinds import PYTORCHJOB

        create_job(connect(), PYTORCHJOB, yaml.safe_load(file.read_text()))
        assert cluster.job("my-run-1")
    assert mistake(*RANKS, "-o", tmp_path).startswith(f"{tmp_path} cannot be written")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "set parallel.procs_per_node"),
        ((*RANKS, "-s", "cluster.launcher=local"), "cluster.launcher is local"),
        ((*RANKS, "--kind", "job"), "the kind 'job' is not known: name one of pytorchjob, trainjob"),
        ((*RANKS, "--store", "store"), "the store 'store' is not a path in the pods"),
        ((*RANKS, "--name", "No"), "the run name 'No' is not valid"),
        (("nowhere",), "there is no recipe 'nowhere'"),
    ],
)
def test_what_makes_no_job_is_said(arguments, words):
    assert words in mistake(*arguments)


def test_rendering_loads_nothing_heavy():
    code = (
        "import sys, json; sys.argv[1:] = ['render', '-s', 'parallel.procs_per_node=1'];"
        "from pipelines.cli import app; app(standalone_mode=False);"
        "print(json.dumps([m for m in ('kfp', 'torch', 'transformers', 'mlflow') if m in sys.modules]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert json.loads(ended.stdout.splitlines()[-1]) == [], ended.stderr


def test_a_kind_that_lacks_what_is_set_is_refused():
    said = mistake("quickstart", *RANKS, "-s", "cluster.gang=volcano", "--kind", "trainjob")
    assert "cluster.gang is set, but a TrainJob has no such choice" in said


def test_a_namespace_that_can_be_none_is_refused():
    assert "the namespace 'My Team' is not valid" in mistake("quickstart", *RANKS, "--namespace", "My Team")
