"""From configuration and task to the neutral job, and the names of jobs."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kfp import dsl

from components.image import IMAGE
from components.jobs.describe import DEFAULT_ENV, TaskSettings, describe_job, ranks_per_node
from components.jobs.job import job_name
from training.errors import UserError
from training.resolve import resolve
from training.run_folder import RunFolder, check_run_name

GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "store", "a-run")


def config(cluster=None, **sections):
    cluster = {"launcher": "pytorchjob", "store_claim": "claim", "gpus_per_node": 8, **(cluster or {})}
    return resolve({"model": {"name": "org/model"}, "data": {"train": "org/data"}, "cluster": cluster, **sections})


def pods(folder, task=None, cluster=None, **sections):
    return describe_job(config(cluster, **sections), folder, 1, task).pods


def problem(call):
    with pytest.raises(UserError) as caught:
        call()
    return str(caught.value)


def test_what_was_set_on_one_task_serves_the_next_that_says_nothing(folder):
    env = [{"name": "TOKEN", "value": "not to be kept"}]
    volumes = [{"name": "store", "persistentVolumeClaim": {"claimName": "claim"}}]
    first = TaskSettings(resources={"limits": {GPU: "8"}}, volumes=volumes, node_selector={"a": "b"}, env=env)
    assert TaskSettings().or_saved(folder) == TaskSettings()
    folder.path.mkdir(parents=True)
    first.save(folder)
    assert "TOKEN" not in (folder.path / "task.json").read_text()
    second = TaskSettings(node_selector={"c": "d"}, env=[{"name": "OWN", "value": "1"}]).or_saved(folder)
    assert second == TaskSettings(
        resources={"limits": {GPU: "8"}},
        volumes=volumes,
        node_selector={"c": "d"},
        env=[{"name": "OWN", "value": "1"}],
    )


def test_local_checkpoints_get_a_volume_unless_the_task_has_one(folder):
    found = pods(folder, checkpoint={"local_folder": "/local/checkpoints"})
    assert {"name": "shardline-local", "emptyDir": {}} in found.volumes
    assert {"name": "shardline-local", "mountPath": "/local/checkpoints"} in found.volume_mounts
    own = TaskSettings(
        volumes=[{"name": "nvme", "hostPath": {"path": "/mnt/nvme"}}],
        volume_mounts=[{"name": "nvme", "mountPath": "/local"}],
    )
    found = pods(folder, own, checkpoint={"local_folder": "/local/checkpoints"})
    assert [volume["name"] for volume in found.volumes] == ["nvme", "shardline-store"]
    assert [volume["name"] for volume in pods(folder).volumes] == ["shardline-store"]


# Job names

RUNS = st.from_regex(r"[a-z]([a-z0-9-]{0,46}[a-z0-9])?", fullmatch=True)
ATTEMPTS = st.integers(1, 999)
NODES = st.integers(1, 10_000)


@given(run=RUNS, attempt=ATTEMPTS, nodes=NODES)
def test_a_jobs_name_and_all_that_is_made_of_it_are_dns_labels(run, attempt, nodes):
    check_run_name(run)
    name = job_name(run, attempt, nodes)
    for made in (name, f"{name}-worker-{nodes - 1}", f"{name}-node-0-{nodes - 1}-abcde"):
        assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", made)
        assert len(made) <= 63


@given(run=RUNS, attempt=ATTEMPTS, nodes=NODES, purpose=st.sampled_from(["evaluation", "health"]))
def test_no_other_job_has_the_name_of_a_training(run, attempt, nodes, purpose):
    name = job_name(run, attempt, nodes, purpose)
    assert name.endswith(f"-{purpose[0]}{attempt}") and len(f"{name}-node-0-{nodes - 1}-abcde") <= 63
    assert name != job_name(name, attempt, nodes) and name != job_name(run, attempt, nodes)


@given(run=RUNS, nodes=NODES, attempts=st.sets(ATTEMPTS, min_size=2, max_size=5))
def test_attempts_of_a_run_have_different_names_that_end_with_their_number(run, nodes, attempts):
    names = {attempt: job_name(run, attempt, nodes) for attempt in attempts}
    assert len(set(names.values())) == len(attempts)
    assert all(name.endswith(f"-{attempt}") for attempt, name in names.items())


@given(prefix=RUNS, ends=st.sets(RUNS, min_size=2, max_size=5), attempt=ATTEMPTS, nodes=NODES)
def test_runs_with_a_common_beginning_have_different_names(prefix, ends, attempt, nodes):
    runs = {f"{prefix[:30]}{end[:18]}".rstrip("-") for end in ends}
    assert len({job_name(run, attempt, nodes) for run in runs}) == len(runs)


@given(run=RUNS, attempt=ATTEMPTS, nodes=NODES)
def test_a_name_is_the_same_each_time_and_legible(run, attempt, nodes):
    name = job_name(run, attempt, nodes)
    assert name == job_name(run, attempt, nodes)
    assert name.startswith(run[:30])
    if len(run) <= 40:
        assert name == f"{run}-{attempt}"


# What was set on the task


def test_a_task_without_settings_changes_nothing(folder):
    empty = dsl.TaskConfig(
        affinity=None,
        tolerations=None,
        node_selector=None,
        env=None,
        volumes=None,
        volume_mounts=None,
        resources=None,
    )
    assert TaskSettings.of(empty) == TaskSettings.of(None) == TaskSettings()
    described = describe_job(config(), folder, 1, TaskSettings.of(empty))
    assert described == describe_job(config(), folder, 1)
    assert described.pods.limits == {GPU: "8"}
    assert described.pods.env == {
        **DEFAULT_ENV,
        "SHARDLINE_HEARTBEAT_TIMEOUT_S": "300",
        "SHARDLINE_STAY_S": "60",
    }


def test_what_was_set_on_the_task_reaches_the_pods(folder):
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    toleration = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}
    volume = {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}}
    task = dsl.TaskConfig(
        affinity=affinity,
        tolerations=[toleration],
        node_selector={"zone": "a"},
        env=[{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "EMPTY", "value": ""}, token],
        volumes=[volume],
        volume_mounts=[{"name": "cache", "mountPath": "/cache"}],
        resources={"limits": {GPU: "4", "cpu": "48"}, "requests": {"cpu": "32", GPU: "4"}},
    )
    found = pods(folder, TaskSettings.of(task), {"gpus_per_node": None})
    assert found.affinity == affinity
    assert found.tolerations == (toleration,)
    assert found.node_selector == {"zone": "a"}
    assert (found.env["NCCL_DEBUG"], found.env["EMPTY"]) == ("INFO", "")
    assert found.secret_env == (token,)
    assert [each["name"] for each in found.volumes] == ["cache", "shardline-store"]
    assert [each["mountPath"] for each in found.volume_mounts] == ["/cache", str(folder.root)]
    assert (found.limits, found.requests) == ({GPU: "4", "cpu": "48"}, {"cpu": "32"})


def test_the_configuration_wins_over_the_task(folder):
    task = TaskSettings(
        affinity={"podAffinity": {}},
        tolerations=[{"key": "task"}, {"key": "both"}],
        node_selector={"zone": "a", "kind": "task"},
        env=[{"name": "A", "value": "task"}, {"name": "B", "value": "task"}],
        resources={"limits": {GPU: "4", "cpu": "8", "memory": "1Gi"}, "requests": {GPU: "4", "cpu": "2"}},
    )
    found = pods(
        folder,
        task,
        {
            "affinity": {"nodeAffinity": {}},
            "tolerations": [{"key": "config"}, {"key": "both"}],
            "node_selector": {"kind": "config"},
            "env": {"A": "config"},
            "gpus_per_node": 2,
            "cpus_per_node": "16",
        },
    )
    assert found.affinity == {"nodeAffinity": {}}
    assert found.tolerations == ({"key": "config"}, {"key": "both"}, {"key": "task"})
    assert found.node_selector == {"zone": "a", "kind": "config"}
    assert (found.env["A"], found.env["B"]) == ("config", "task")
    assert found.limits == {GPU: "2", "cpu": "16", "memory": "1Gi"}
    assert found.requests == {}


# Environment


def test_the_configurations_environment_wins_over_shardlines_own(folder):
    env = pods(folder, cluster={"env": {"NCCL_DEBUG": "INFO"}}).env
    assert env["NCCL_DEBUG"] == "INFO"
    assert env["NCCL_SOCKET_IFNAME"] == DEFAULT_ENV["NCCL_SOCKET_IFNAME"]


def test_the_heartbeats_limit_comes_from_the_configuration_alone(folder):
    task = TaskSettings(env=[{"name": "SHARDLINE_HEARTBEAT_TIMEOUT_S", "value": "1"}])
    env = pods(folder, task, resilience={"heartbeat_timeout_s": 77}).env
    assert env["SHARDLINE_HEARTBEAT_TIMEOUT_S"] == "77"


@pytest.mark.parametrize("cluster", [{"efa_per_node": 32}, {"resources": {EFA: "32"}}])
def test_libfabric_is_told_of_efa_where_there_is_some(folder, cluster):
    found = pods(folder, cluster=cluster)
    assert found.limits[EFA] == "32"
    assert found.env["FI_PROVIDER"] == "efa"
    assert "FI_PROVIDER" not in pods(folder).env
    assert pods(folder, cluster={**cluster, "env": {"FI_PROVIDER": "tcp"}}).env["FI_PROVIDER"] == "tcp"


def test_a_secret_of_the_configuration_wins_over_the_tasks(folder):
    task = TaskSettings(
        env=[
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "task", "key": "k"}}},
            {"name": "PLACE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ]
    )
    found = pods(folder, task, {"secrets": {"HF_TOKEN": "mine/token"}, "env": {"PLACE": "here"}})
    secret = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "token"}}}
    assert found.secret_env == (secret,)
    assert found.env["PLACE"] == "here"


def test_a_steps_login_at_mlflow_is_not_passed_on_to_the_pods(folder):
    keys = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY")
    env = [{"name": key, "valueFrom": {"secretKeyRef": {"name": "task", "key": key}}} for key in keys]
    assert [entry["name"] for entry in pods(folder, TaskSettings(env=env)).secret_env] == ["AWS_SECRET_ACCESS_KEY"]


# Ranks and resources


@pytest.mark.parametrize(
    "procs, gpus, of_task, expected",
    [
        (None, 8, None, 8),
        (4, 8, None, 4),
        (4, None, None, 4),
        (None, None, "2", 2),
        (None, 8, "2", 8),
        (4, None, "2", 4),
        (2, 0, None, 2),
    ],
)
def test_ranks_are_as_configured_or_one_per_gpu(procs, gpus, of_task, expected):
    task = TaskSettings(resources={"limits": {GPU: of_task}}) if of_task else None
    assert ranks_per_node(config({"gpus_per_node": gpus}, parallel={"procs_per_node": procs}), task) == expected


@pytest.mark.parametrize("gpus", [None, 0])
@pytest.mark.parametrize("task", [None, TaskSettings(), TaskSettings(resources={"limits": {"cpu": "4"}})])
def test_ranks_that_nobody_knows_are_asked_for(folder, gpus, task):
    told = problem(lambda: describe_job(config({"gpus_per_node": gpus}), folder, 1, task))
    assert "set parallel.procs_per_node" in told
    assert ("set cluster.gpus_per_node=0" in told) is (gpus is None), "what is set already is not asked for"


@pytest.mark.parametrize(
    "procs, gpus, of_task, expected",
    [(4, None, None, "4"), (4, 8, None, "8"), (4, None, "2", "2"), (2, 0, "8", None), (2, 0, None, None)],
)
def test_gpus_are_as_configured_or_the_tasks_or_one_per_rank(folder, procs, gpus, of_task, expected):
    task = TaskSettings(resources={"limits": {GPU: of_task}, "requests": {GPU: of_task}} if of_task else {})
    found = pods(folder, task, {"gpus_per_node": gpus}, parallel={"procs_per_node": procs})
    assert found.limits.get(GPU) == expected
    assert GPU not in found.requests


def test_gpus_go_by_the_name_that_the_cluster_has_for_them(folder):
    assert pods(folder, cluster={"gpu_resource": "amd.com/gpu"}).limits == {"amd.com/gpu": "8"}


def test_other_resources_are_limits_as_they_were_written(folder):
    cluster = {
        "resources": {"hugepages-2Mi": "5120Mi", "rdma/ib": 1},
        "memory_per_node": "512Gi",
        "cpus_per_node": 48,
    }
    assert pods(folder, cluster=cluster).limits == {
        GPU: "8",
        "cpu": "48",
        "memory": "512Gi",
        "hugepages-2Mi": "5120Mi",
        "rdma/ib": "1",
    }


def test_requests_of_the_task_stay_where_it_set_no_limit(folder):
    task = TaskSettings(resources={"requests": {"memory": "64Gi", "cpu": 4}})
    found = pods(folder, task, {"cpus_per_node": "8"})
    assert found.limits == {GPU: "8", "cpu": "8"}
    assert found.requests == {"memory": "64Gi"}


# The store


@pytest.mark.parametrize("mount", ["{root}", "{root}/", "{parent}", "/"])
def test_a_volume_of_the_task_that_holds_the_store_is_not_mounted_twice(folder, mount):
    path = mount.format(root=folder.root, parent=folder.root.parent)
    task = TaskSettings(
        volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "claim"}}],
        volume_mounts=[{"name": "v", "mountPath": path}],
    )
    for claim in ("claim", None):
        found = pods(folder, task, {"store_claim": claim})
        assert [each["name"] for each in found.volumes] == ["v"]
        assert [each["mountPath"] for each in found.volume_mounts] == [path]


@pytest.mark.parametrize("mount", ["{root}-2", "{root}/runs", "/elsewhere"])
def test_a_volume_that_does_not_hold_the_store_leaves_it_to_the_claim(folder, mount):
    path = mount.format(root=folder.root)
    task = TaskSettings(volumes=[{"name": "store"}], volume_mounts=[{"name": "store", "mountPath": path}])
    found = pods(folder, task)
    assert found.volumes[-1]["persistentVolumeClaim"] == {"claimName": "claim"}
    assert found.volume_mounts[-1]["mountPath"] == str(folder.root)
    assert len({each["name"] for each in found.volumes}) == 2


def test_a_store_that_the_pods_would_not_see_is_told(folder):
    told = problem(lambda: pods(folder, cluster={"store_claim": None}))
    assert str(folder.root) in told
    assert "set cluster.store_claim" in told


# The rest


def test_the_image_is_the_configured_or_the_steps_own_or_the_released(folder):
    assert describe_job(config({"image": "mine:1"}), folder, 1, image="step:1").pods.image == "mine:1"
    assert describe_job(config(), folder, 1, image="step:1").pods.image == "step:1"
    assert describe_job(config(), folder, 1).pods.image == IMAGE


def test_a_job_is_named_by_run_and_attempt_and_marked_by_its_folder(folder):
    folder.create(config())
    job = describe_job(config(parallel={"num_nodes": 2}), folder, 2, owner={"uid": "u"}, excluded_hosts=("h",))
    assert (job.name, job.run, job.attempt) == ("a-run-2", "a-run", 2)
    assert (job.num_nodes, job.procs_per_node) == (2, 8)
    assert job.run_id == folder.identity()
    assert re.fullmatch(r"[0-9a-f]{16}", job.run_id)
    assert job.command == ["python", "-m", "training.node", str(folder.path)]
    assert (job.scheduling.owner, job.pods.excluded_hosts) == ({"uid": "u"}, ("h",))
    assert describe_job(config(), folder, 1).run_id == job.run_id


@pytest.mark.parametrize(
    "field, value",
    [
        ("image_pull_secrets", ("regcred",)),
        ("service_account", "trainer"),
        ("shared_memory", "64Gi"),
        ("labels", {"team": "nlp"}),
        ("annotations", {"note": "x"}),
        ("priority_class", "high"),
        ("grace_s", 77),
        ("metrics_port", 9400),
    ],
)
def test_a_setting_of_the_pods_reaches_them_under_the_same_name(folder, field, value):
    assert getattr(pods(folder, cluster={field: value}), field) == value


@pytest.mark.parametrize(
    "field, value", [("queue", "team-a"), ("gang", "volcano"), ("ttl_s", 5), ("hyperpod_max_retries", 3)]
)
def test_a_setting_of_the_scheduling_reaches_it_under_the_same_name(folder, field, value):
    assert getattr(describe_job(config({field: value}), folder, 1).scheduling, field) == value


def test_the_address_of_etcd_reaches_the_scheduling(folder):
    settings = {"rendezvous": "etcd", "etcd_endpoint": "etcd.demo:2379"}
    assert describe_job(config(settings), folder, 1).scheduling.etcd_endpoint == "etcd.demo:2379"
