"""Connecting to Kubeflow Pipelines, submitting to it and looking runs up, with the real SDK against a double."""

import json
import re
import socket
import time

import pytest
import yaml

from pipelines.kubeflow import client as connection
from pipelines.kubeflow import submit as submission
from pipelines.kubeflow.client import connect
from pipelines.kubeflow.runs import find_run, terminate_run
from pipelines.kubeflow.submit import find_graph, graph_arguments, submit, upload_graph, version_name
from tests.doubles.kubeflow import FakeKubeflow
from training.errors import UserError
from training.run_folder import check_run_name


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No host, token or kubeconfig of the machine that the tests run on."""
    for name in ("KF_PIPELINES_ENDPOINT", "KFP_ENDPOINT", "KFP_TOKEN", "KUBERNETES_SERVICE_HOST", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr(connection._Client, "_LOCAL_KFP_CONTEXT", str(tmp_path / "context.json"))


@pytest.fixture
def double(tmp_path):
    with FakeKubeflow(tmp_path / "kubeflow") as double:
        yield double


def refusal(function, *arguments, **options):
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    return str(caught.value)


def posts(double):
    return [request.path.rpartition("/v2beta1/")[2] for request in double.requests if request.method == "POST"]


@pytest.fixture
def recipe(tmp_path):
    content = {"model": {"name": "org/model"}, "data": {"train": "/mnt/shardline/data/train.jsonl"}}
    file = tmp_path / "My Recipe.yaml"
    file.write_text(yaml.safe_dump(content))
    return file, content


def test_a_recipe_file_travels_as_its_content_and_the_graph_as_a_version(double, recipe):
    file, content = recipe
    run = submit(connect(double.url), str(file), ["training.epochs=2", "registry.experiment=a; b"])
    (sent,) = double.runs.values()
    parameters = sent["runtime_config"]["parameters"]
    assert json.loads(parameters["recipe"]) == content and "\n" not in parameters["recipe"]
    assert json.loads(parameters["overrides"]) == ["training.epochs=2", "registry.experiment=a; b"]
    assert parameters["run"] == sent["display_name"] == run.name
    assert run.name.startswith("my-recipe-")
    check_run_name(run.name)
    assert run.url == f"{double.url}/#/runs/details/{run.run_id}"
    version = double.versions[sent["pipeline_version_reference"]["pipeline_version_id"]]
    assert version["name"] == run.version == version_name()
    assert version["_manifest"] == submission.GRAPH.read_text()
    # Kubeflow's own cache is off.
    assert "enableCache" not in version["_manifest"]
    assert double.experiments[sent["experiment_id"]]["display_name"] == "shardline"


def test_the_steps_mount_the_claim_that_the_job_will():
    override = ["cluster.store_claim=team-store"]
    assert graph_arguments("quickstart", override, {})["store_claim"] == "team-store"
    assert graph_arguments("quickstart", override, {"store_claim": "given"})["store_claim"] == "given"


def test_a_shipped_recipe_travels_by_its_name_and_other_parameters_beside_it(double):
    kubeflow = connect(double.url)
    submit(kubeflow, "quickstart", name="mine", experiment="other", parameters={"store_claim": "claim"})
    submit(kubeflow, "quickstart", name="mine", service_account="trainer")
    first, second = double.runs.values()
    assert first["runtime_config"]["parameters"] == {"recipe": "quickstart", "run": "mine", "store_claim": "claim"}
    assert double.experiments[first["experiment_id"]]["display_name"] == "other"
    assert first["service_account"] == "pipeline-runner" and second["service_account"] == "trainer"


def test_a_graph_that_is_on_the_server_is_not_uploaded_again(double, tmp_path, monkeypatch):
    kubeflow = connect(double.url)
    submit(kubeflow, "quickstart")
    assert posts(double) == ["pipelines/upload", "pipelines/upload_version", "experiments", "runs"]
    before = len(double.requests)
    submit(connect(double.url), "quickstart")
    assert posts(double)[4:] == ["runs"] and len(double.requests) > before
    # Another graph is another version of the same pipeline.
    other = tmp_path / "other.yaml"
    other.write_text(submission.GRAPH.read_text() + "\n# changed\n")
    monkeypatch.setattr(submission, "GRAPH", other)
    submit(connect(double.url), "quickstart")
    assert posts(double)[5:] == ["pipelines/upload_version", "runs"]
    assert len(double.pipelines) == 1
    used = [run["pipeline_version_reference"]["pipeline_version_id"] for run in double.runs.values()]
    assert used[0] == used[1] != used[2]


def test_what_somebody_else_makes_at_the_same_time_is_used(double, monkeypatch):
    kubeflow = connect(double.url)
    submit(kubeflow, "quickstart")
    answer = double._answer
    unseen = {"pipelines", "versions", "experiments"}

    def answer_late(request):
        status, content = answer(request)
        kind = request.path.rpartition("/")[2]
        if request.method == "GET" and kind in unseen:
            unseen.remove(kind)
            return status, {}
        return status, content

    monkeypatch.setattr(double, "_answer", answer_late)
    submit(kubeflow, "quickstart")
    first, second = double.runs.values()
    for key in ("experiment_id", "pipeline_version_reference"):
        assert first[key] == second[key]
    assert unseen == set() and posts(double).count("pipelines/upload_version") == 2


def test_a_version_is_found_by_name(double):
    kubeflow = connect(double.url)
    assert "submit a run first" in refusal(find_graph, kubeflow, "0.0.1")
    uploaded = upload_graph(kubeflow)
    assert find_graph(kubeflow, uploaded.name) == uploaded
    assert f"name one of {uploaded.name}" in refusal(find_graph, kubeflow, "0.0.1")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["training.max_step=3"], "did you mean 'max_steps'?"),
        (["data.train=train.jsonl"], "data.train is 'train.jsonl', a file of this machine"),
        (
            ["data.train=[{source: org/data}, {source: rows.csv.gz, weight: null}]"],
            "data.train is 'rows.csv.gz', a file of this machine",
        ),
        (["data.heldout=../heldout.jsonl"], "data.heldout"),
        (["model.name=./model"], "absolute path on the claim"),
        (["model.name=there"], "model.name is 'there'"),
    ],
)
@pytest.mark.parametrize("shipped", [True, False])
def test_mistakes_are_told_before_anything_is_uploaded(
    double, recipe, overrides, said, shipped, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    kubeflow = connect(double.url)
    name = "quickstart" if shipped else str(recipe[0])
    assert said in refusal(submit, kubeflow, name, overrides)
    assert posts(double) == []


def test_hub_ids_and_paths_on_the_claim_are_taken(recipe):
    fine = [
        "model.name=HuggingFaceTB/SmolLM2-135M",
        "data.train=org/data.v2",
        "data.heldout=/mnt/shardline/h.jsonl",
    ]
    assert json.loads(graph_arguments(str(recipe[0]), fine, {})["overrides"]) == fine


def test_the_time_of_a_schedule_has_no_place_in_one_run(double):
    kubeflow = connect(double.url)
    assert "is the time at which a schedule fires" in refusal(
        submit, kubeflow, "quickstart", ["data.train=/d/{scheduled:%Y}.jsonl"]
    )
    assert posts(double) == []


def test_a_run_name_or_parameter_that_cannot_be(double):
    kubeflow = connect(double.url)
    assert "run name 'Mine' is not valid" in refusal(submit, kubeflow, "quickstart", name="Mine")
    said = refusal(submit, kubeflow, "quickstart", parameters={"claim": "x"})
    assert said.startswith("'claim' is no parameter of the graph") and "store_claim" in said
    said = refusal(submit, kubeflow, "quickstart", parameters={"store_claim": 3})
    assert "store_claim requires type string" in said and said.startswith(f"{double.url} refused (400)")
    assert double.runs == {}


def test_runs_are_found_by_their_name_with_the_states_of_their_tasks(double):
    kubeflow = connect(double.url)
    assert find_run(kubeflow, "mine") is None
    submit(kubeflow, "quickstart", name="mine")
    newer = submit(kubeflow, "quickstart", name="mine")
    for _ in range(130):
        submit_quickly(double, newer.run_id)
    double.set_state(newer.run_id, "RUNNING", {"preflight": "SUCCEEDED", "train": "RUNNING"})
    run = find_run(kubeflow, "mine")
    assert (run.run_id, run.state, run.ended) == (newer.run_id, "RUNNING", False)
    assert run.tasks == {"preflight": "SUCCEEDED", "train": "RUNNING"}
    assert run.url.endswith(newer.run_id)
    double.set_state(newer.run_id, "FAILED", {"train": "FAILED"}, error="out of memory")
    run = find_run(kubeflow, "mine")
    assert run.ended and run.error == "out of memory"


def submit_quickly(double, like):
    """Another run, without the way through the API."""
    double._start({**double.runs[like], "display_name": "Other-1"}, f"other-{len(double.runs)}")


def test_a_scheduled_run_is_found_by_the_name_that_it_has_in_the_store(double):
    kubeflow = connect(double.url)
    first = submit(kubeflow, "quickstart", name="mine")
    double.runs[first.run_id]["display_name"] = "7b nightly-1-99"
    for _ in range(120):
        submit_quickly(double, first.run_id)
    # What a step makes of the job's name.
    assert find_run(kubeflow, "run-7b-nightly-1-99").run_id == first.run_id


def test_a_run_is_terminated_by_its_name_and_only_while_it_goes_on(double):
    kubeflow = connect(double.url)
    said = refusal(terminate_run, kubeflow, "mine")
    assert "no run 'mine'" in said and double.url in said
    submitted = submit(kubeflow, "quickstart", name="mine")
    double.set_state(submitted.run_id, "RUNNING")
    assert terminate_run(kubeflow, "mine").state == "RUNNING"
    assert double.runs[submitted.run_id]["state"] == "CANCELING"
    double.set_state(submitted.run_id, "FAILED")
    asked = len(posts(double))
    assert terminate_run(kubeflow, "mine").ended
    assert len(posts(double)) == asked


# What can go wrong with the connection.


def test_without_a_host_or_a_cluster(monkeypatch):
    assert "no Kubeflow Pipelines server is named" in refusal(connect)


@pytest.mark.parametrize("name", ["KF_PIPELINES_ENDPOINT", "KFP_ENDPOINT"])
def test_the_host_may_come_from_the_environment(double, name, monkeypatch):
    monkeypatch.setenv(name, double.url)
    assert connect().host == double.url


def test_in_a_pod_the_sdk_finds_the_server(monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    hosts = []
    monkeypatch.setattr(
        connection._Client, "get_kfp_healthz", lambda self: hosts.append(self._existing_config.host) or 1 / 0
    )
    monkeypatch.setattr("kubernetes.config.load_incluster_config", lambda: None)
    # A user's namespace is not where the server is.
    monkeypatch.setattr(connection, "_has_mounted_token", lambda: False)
    with pytest.raises(ZeroDivisionError):
        connect(namespace="team")
    assert hosts[0] == "ml-pipeline.kubeflow.svc.cluster.local:8888"


@pytest.mark.parametrize("host", ["localhost:8080", "kubeflow.example.com", "ftp://x", "http:///x"])
def test_a_host_that_is_no_address(host):
    said = refusal(connect, host)
    assert f"'{host}' is not an address" in said and "http://localhost:8080" in said


def test_nothing_listens(double):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    assert refusal(connect, url) == (
        f"nothing answers at {url}: check the address, and that the port is forwarded or the VPN is up"
    )


def test_a_name_that_is_not_known():
    said = refusal(connect, "http://nowhere.invalid")
    assert (
        said == "the name in http://nowhere.invalid is not known: check the spelling, and the VPN if there is one"
    )


def test_a_server_that_speaks_no_tls(double):
    said = refusal(connect, double.url.replace("http:", "https:"))
    assert "is not trusted (TLS:" in said and "SSL_CERT_FILE" in said


def test_a_server_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(connection, "_TIMEOUT_S", (0.2, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = refusal(connect, f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert "did not answer in time" in said


def test_a_connection_that_breaks_says_that_the_outcome_is_not_known(double):
    kubeflow = connect(double.url)
    double.fail(0, path="/runs$", method="POST")
    assert "not known whether the request was carried out" in refusal(submit, kubeflow, "quickstart")


def test_the_token_is_sent_and_never_told(tmp_path, monkeypatch):
    with FakeKubeflow(tmp_path, token="s3cret-token") as double:
        said = refusal(connect, double.url)
        assert said.startswith(f"{double.url} asks for a login (401): set KFP_TOKEN")
        monkeypatch.setenv("KFP_TOKEN", "s3cret-token")
        kubeflow = connect(double.url)
        double.fail(500, body={"message": "no luck with s3cret-token"}, path="experiments")
        said = refusal(submit, kubeflow, "quickstart")
        assert said == f"{double.url} failed (500: no luck with …): try again later, or see its logs"


def test_a_notebooks_token_is_taken_and_read_anew(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text("first")
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(file))
    with FakeKubeflow(tmp_path, token="first") as double:
        kubeflow = connect(double.url)
        double.token = "second"
        file.write_text("second")
        assert find_run(kubeflow, "x") is None


def test_a_login_page_is_not_taken_for_an_answer(tmp_path):
    with FakeKubeflow(tmp_path, login_page=True) as double:
        assert "asks for a login" in refusal(connect, double.url)
    with FakeKubeflow(tmp_path) as double:
        kubeflow = connect(double.url)
        double.login_page = True  # the session has ended meanwhile
        assert "asks for a login" in refusal(submit, kubeflow, "quickstart")
        assert double.pipelines == {}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            {"status": 403, "body": {"message": "User a@b is not authorized"}},
            "does not allow this: User a@b is not",
        ),
        ({"status": 403, "body": "RBAC: access denied", "content_type": "text/plain"}, "asks for a login (403)"),
        ({"status": 404, "body": "<html>Not found</html>", "content_type": "text/html"}, "ends in /pipeline"),
        (
            {"status": 503, "body": "upstream connect error", "content_type": "text/plain"},
            "failed (503): try again",
        ),
        ({"status": 400, "body": {"error": "x", "message": "bad   filter"}}, "refused (400): bad filter"),
    ],
)
def test_refusals_are_one_sentence(double, fault, said):
    double.fail(**fault)
    text = refusal(connect, double.url)
    assert said in text and text.startswith(double.url) and "\n" not in text


def test_a_password_in_the_address_is_not_shown():
    said = refusal(connect, "http://me:hunter2@nowhere.invalid")
    assert "hunter2" not in said and "leave out users and passwords" in said


@pytest.mark.parametrize(
    "host",
    [
        "http://me:hunter2@127.0.0.1:1",
        "http://me:h/unter2@x:1",
        "me:hunter2@x",
        "http://x/?token=hunter2",
        "http://x/#a",
    ],
)
def test_an_address_with_more_in_it_is_refused_unseen(host):
    said = refusal(connect, host)
    assert "unter2" not in said and f"a token goes into {connection.TOKEN_VARIABLE}" in said


@pytest.mark.parametrize(
    "host", ["http://[::1", "http://x:99999", "http://x:abc", "http://x:0", "http://a b", "http://a\nb"]
)
def test_an_address_that_can_be_none_is_told_as_such(host):
    said = refusal(connect, host)
    assert "is not an address: write it with http:// or https://" in said and "\n" not in said


def test_blanks_and_capitals_around_an_address_do_not_matter(double):
    assert connect(f" {double.url.replace('http', 'HTTP')}/ ").host == double.url


def test_a_token_may_end_with_a_line_break_but_is_never_shown(tmp_path, monkeypatch):
    with FakeKubeflow(tmp_path, token="secret-token") as double:
        monkeypatch.setenv("KFP_TOKEN", "secret-token\n")
        assert connect(double.url).host == double.url
        for broken in ("secret-token\nmore", "secret-tök"):
            monkeypatch.setenv("KFP_TOKEN", broken)
            said = refusal(connect, double.url)
            assert "KFP_TOKEN holds no token" in said and "secret" not in said


@pytest.mark.parametrize("content", ["", "{", "text", "apiVersion: v1\nkind: Config\n"])
def test_a_kubeconfig_that_cannot_be_read_is_told_instead_of_asking_this_machine(tmp_path, monkeypatch, content):
    (tmp_path / "kubeconfig").write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    assert "set KUBECONFIG to a kubeconfig that `kubectl get pods` works with" in refusal(connect)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"parameters": {"store_claim": "My Claim"}}, "the claim 'My Claim' is not valid"),
        ({"parameters": {"secret": "hf_" + "a1B2" * 8}}, "the secret a text that looks like a credential"),
        ({"service_account": "a b"}, "the service account 'a b' is not valid"),
        ({"image": "a:1\n  command: [evil]"}, "give it as REPOSITORY:TAG"),
        ({"experiment": " "}, "the experiment's name ' ' is not valid"),
        ({"experiment": "x" * 300}, "give 1 to 128 characters"),
    ],
)
def test_what_the_cluster_would_refuse_later_is_refused_before_a_run_is_made(double, options, said):
    text = refusal(submit, connect(double.url), "quickstart", **options)
    assert said in text and "a1B2" not in text
    assert not double.runs


def test_a_namespace_that_can_be_none_is_told(double):
    assert "the namespace 'My Team' is not valid" in refusal(connect, double.url, "My Team")


def test_a_run_of_another_pipeline_is_not_taken_for_ours(double):
    kubeflow = connect(double.url)
    ours = submit(kubeflow, "quickstart", name="nightly").run_id
    (mine,) = double.runs.values()
    version = next(iter(double.versions.values()))
    spec = {**version["pipeline_spec"], "pipelineInfo": {"name": "theirs"}}
    double.versions["other"] = {**version, "pipeline_version_id": "other", "pipeline_spec": spec}
    reference = {**mine["pipeline_version_reference"], "pipeline_version_id": "other"}
    double.runs["foreign"] = {**mine, "run_id": "foreign", "pipeline_version_reference": reference}
    assert find_run(kubeflow, "nightly").run_id == ours
    terminate_run(kubeflow, "nightly")
    assert double.runs["foreign"]["state"] == "PENDING" != double.runs[ours]["state"]


def test_several_users_need_a_namespace(tmp_path, monkeypatch):
    with FakeKubeflow(tmp_path, multi_user=True) as double:
        assert "name your namespace with --namespace" in refusal(connect, double.url)
        kubeflow = connect(double.url, "team")
        submit(kubeflow, "quickstart", name="mine")
        submit(connect(double.url, "other"), "quickstart", name="mine")
        assert [one["namespace"] for one in double.pipelines.values()] == ["team", "other"]
        first, second = double.runs
        assert find_run(kubeflow, "mine").run_id == first != second
        assert not (tmp_path / "context.json").exists()


def test_a_single_user_installation_has_no_namespaces(double):
    kubeflow = connect(double.url, "team")
    submit(kubeflow, "quickstart")
    assert kubeflow.namespace == ""


# The double itself.


def test_the_double_refuses_names_that_are_taken_and_what_is_missing(double):
    kubeflow = connect(double.url)
    graph = upload_graph(kubeflow)
    file = str(submission.GRAPH)
    upload, version = kubeflow.uploads.upload_pipeline, kubeflow.uploads.upload_pipeline_version
    assert re.search(r"\(409\): .*already exist", refusal(kubeflow.call, upload, file, name="shardline-finetune"))
    taken = {"name": graph.name, "pipelineid": graph.pipeline_id}
    assert re.search(r"\(409\): .*already exist", refusal(kubeflow.call, version, file, **taken))
    assert "not found" in refusal(kubeflow.call, kubeflow.runs.run_service_get_run, run_id="x")


GRAPH = """
from kfp import dsl

@dsl.component(base_image="python:3.11", install_kfp_package=False)
def first(store: str, job: str) -> str:
    from pathlib import Path
    Path(store, "first").write_text(job)
    return store

@dsl.component(base_image="python:3.11", install_kfp_package=False)
def slow(store: str, seconds: int):
    import os, signal, sys, time
    from pathlib import Path
    def leave(*_):
        Path(store, "stopped").touch()
        sys.exit(143)
    signal.signal(signal.SIGTERM, leave)
    Path(store, "slow").write_text(os.environ["COLOUR"])
    time.sleep(seconds)

@dsl.component(base_image="python:3.11", install_kfp_package=False)
def last(store: str, status: dsl.PipelineTaskFinalStatus):
    from pathlib import Path
    Path(store, "last").write_text(status.state)

@dsl.pipeline(name="shardline-finetune")
def graph(store: str, seconds: int = 0):
    with dsl.ExitHandler(last(store=store)):
        before = first(store=store, job=dsl.PIPELINE_JOB_NAME_PLACEHOLDER)
        slow(store=before.output, seconds=seconds).set_retry(num_retries=2)
"""


def test_the_double_truly_runs_what_was_uploaded_and_terminates_it(tmp_path, monkeypatch):
    import importlib.util

    from kfp import compiler

    source = tmp_path / "small.py"
    source.write_text(GRAPH)
    spec = importlib.util.spec_from_file_location("small", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    compiler.Compiler().compile(module.graph, str(tmp_path / "small.yaml"))
    monkeypatch.setattr(submission, "GRAPH", tmp_path / "small.yaml")
    with FakeKubeflow(tmp_path / "runs", execute=True, env={"COLOUR": "blue"}) as double:
        kubeflow = connect(double.url)
        graph = upload_graph(kubeflow)
        experiment = submission.experiment_id(kubeflow, "e")

        def start(name, **parameters):
            (double.claim / name).mkdir(parents=True)
            body = {
                "display_name": name,
                "experiment_id": experiment,
                "pipeline_version_reference": {"pipeline_id": graph.pipeline_id},
                "runtime_config": {"parameters": {"store": f"/mnt/shardline/{name}", **parameters}},
            }
            return kubeflow.call(kubeflow.runs.run_service_create_run, run=body).run_id

        def wrote(run, name):
            file = double.claim / run / name
            return file.read_text() if file.exists() else None

        done = start("done")
        double.wait(done, "SUCCEEDED")
        assert wrote("done", "first") == "done", "the job's name is the run's"
        assert wrote("done", "slow") == "blue"
        assert wrote("done", "last") == "SUCCEEDED"
        assert find_run(kubeflow, "done").tasks == {"first": "SUCCEEDED", "slow": "SUCCEEDED", "last": "SUCCEEDED"}

        stopped = start("stopped", seconds=60)
        deadline = time.monotonic() + 60
        while not wrote("stopped", "slow"):
            assert time.monotonic() < deadline, double.log(stopped)
            time.sleep(0.05)
        terminate_run(kubeflow, "stopped")
        double.wait(stopped, "FAILED")
        assert wrote("stopped", "stopped") == "", "the step got SIGTERM"
        assert wrote("stopped", "last") == "FAILED", "the exit handler ran"
        assert find_run(kubeflow, "stopped").tasks == {"first": "SUCCEEDED", "slow": "FAILED", "last": "SUCCEEDED"}
