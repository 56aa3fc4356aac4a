"""The sections `cluster` and `resilience`: what they take, and what is said about the rest."""

import pytest
import yaml

from training.config import ClusterConfig, ResilienceConfig
from training.errors import UserError
from training.resolve import resolve, to_yaml

MINIMAL = {"model": {"name": "org/model"}, "data": {"train": "org/data"}}


def config(*overrides, **sections):
    return resolve({**MINIMAL, **sections}, overrides)


def problems(*overrides, **sections):
    with pytest.raises(UserError) as caught:
        config(*overrides, **sections)
    return str(caught.value).splitlines()


def value(override):
    section, field = override.partition("=")[0].split(".")
    return getattr(getattr(config(override), section), field)


# What is taken


@pytest.mark.parametrize("launcher", ["auto", "local", "pytorchjob", "trainjob"])
def test_there_are_four_launchers(launcher):
    assert value(f"cluster.launcher={launcher}") == launcher


@pytest.mark.parametrize(
    "given, expected",
    [("48", "48"), ("'48'", "48"), ("'1.5'", "1.5"), ("1.5", "1.5"), ("500m", "500m"), ("null", None)],
)
def test_cpus_are_a_quantity_as_kubernetes_writes_it_and_a_number_is_one(given, expected):
    assert value(f"cluster.cpus_per_node={given}") == expected


@pytest.mark.parametrize(
    "given, expected", [("512Gi", "512Gi"), ("1.5Ti", "1.5Ti"), ("64G", "64G"), ("null", None)]
)
@pytest.mark.parametrize("field", ["memory_per_node", "shared_memory"])
def test_memory_has_a_unit(field, given, expected):
    assert value(f"cluster.{field}={given}") == expected
    with pytest.raises(UserError, match="without a unit these are bytes"):
        value(f"cluster.{field}=64")


def test_other_resources_are_quantities_by_name():
    resources = value("cluster.resources={hugepages-2Mi: 5120Mi, rdma/ib: 1, example.com/a_B.c: '2'}")
    assert resources == {"hugepages-2Mi": "5120Mi", "rdma/ib": "1", "example.com/a_B.c": "2"}


def test_a_number_that_kubeflow_passes_as_text_or_as_a_float_is_taken():
    taken = config(cluster={"gpus_per_node": "8", "efa_per_node": 4.0}, resilience={"stall_timeout_s": "60"})
    assert (taken.cluster.gpus_per_node, taken.cluster.efa_per_node) == (8, 4)
    assert taken.resilience.stall_timeout_s == 60


@pytest.mark.parametrize("field", ["queue_timeout_s", "start_timeout_s", "run_timeout_s", "stall_timeout_s"])
def test_a_limit_of_time_can_be_set_and_be_taken_away(field):
    assert value(f"resilience.{field}=5") == 5
    assert value(f"resilience.{field}=null") is None


def test_all_settings_are_the_same_after_they_were_saved():
    full = config(
        "parallel.num_nodes=2",
        cluster={
            "launcher": "pytorchjob",
            "image_pull_secrets": ["regcred"],
            "resources": {"hugepages-2Mi": "1Gi"},
            "env": {"NCCL_DEBUG": "INFO"},
            "secrets": {"HF_TOKEN": "hugging-face/token"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            "rendezvous": "etcd",
            "etcd_endpoint": "etcd.demo:2379",
            "ttl_s": None,
        },
        resilience={"run_timeout_s": 9},
    )
    assert resolve(yaml.safe_load(to_yaml(full))) == full


def test_several_nodes_need_a_cluster():
    assert config("parallel.num_nodes=2").parallel.num_nodes == 2
    assert config("parallel.num_nodes=2", "cluster.launcher=pytorchjob").parallel.num_nodes == 2
    (problem,) = problems("parallel.num_nodes=2", "cluster.launcher=local")
    assert "parallel.num_nodes is 2" in problem
    assert "run it in a cluster" in problem


# What is refused, one sentence each

REFUSED = [
    "cluster.launcher=slurm",
    *(f"cluster.namespace={name}" for name in ("My_NS", "''", "-a", "a-", "12", "a b", "A")),
    "cluster.image=''",
    "cluster.image_pull_secrets=regcred",
    "cluster.image_pull_secrets=[Bad]",
    "cluster.service_account=a_b",
    "cluster.store_claim=Store",
    "cluster.gpus_per_node=-1",
    "cluster.gpus_per_node=1.5",
    "cluster.gpu_resource=a/b/c",
    "cluster.gpu_resource=''",
    "cluster.cpus_per_node=many",
    "cluster.cpus_per_node=true",
    "cluster.cpus_per_node=-4",
    "cluster.memory_per_node=512GiB",
    "cluster.memory_per_node=512 Gi",
    "cluster.memory_per_node=''",
    "cluster.efa_per_node=-1",
    "cluster.resources={'a b': 1}",
    "cluster.resources={rdma/ib: lots}",
    "cluster.resources=[rdma/ib]",
    "cluster.shared_memory=lots",
    "cluster.env={A-B: x}",
    "cluster.env={1A: x}",
    "cluster.env={A: 1}",
    "cluster.env=[A]",
    "cluster.secrets={HF_TOKEN: hugging-face}",
    "cluster.secrets={HF_TOKEN: Hugging/token}",
    "cluster.secrets={HF_TOKEN: a/b/c}",
    "cluster.secrets={HF TOKEN: a/b}",
    "cluster.node_selector={gpu: true}",
    "cluster.autoscaling=maybe",
    "cluster.tolerations={key: a}",
    "cluster.tolerations=[a]",
    "cluster.affinity=[]",
    "cluster.labels={a: 1}",
    "cluster.annotations={a: 1}",
    "cluster.queue=''",
    "cluster.gang=kueue",
    "cluster.priority_class=High_",
    "cluster.rendezvous=etcd-v2",
    "cluster.etcd_endpoint=http://etcd:2379",
    "cluster.etcd_endpoint=etcd",
    "cluster.hyperpod_max_retries=0",
    "cluster.grace_s=5",
    "cluster.grace_s=null",
    "cluster.ttl_s=-1",
    "cluster.metrics_port=70000",
    *(f"resilience.{field}_timeout_s=0" for field in ("queue", "start", "run", "stall")),
    "resilience.stall_timeout_s=1h",
    "resilience.heartbeat_timeout_s=1",
    "resilience.heartbeat_timeout_s=null",
    "resilience.min_nodes=0",
    "resilience.min_nodes=2",
    "resilience.replacement_timeout_s=0",
    "resilience.exclude_for_s=-1",
    "resilience.nonfinite=retry",
    "resilience.health_checks=maybe",
    "resilience.deep_checks=quick",
    "resilience.health_policy=[a.yaml]",
    "resilience.hang_timeout_s=0",
    "resilience.node_timeout_s=0",
    "resilience.node_timeout_s=null",
    "resilience.straggler_ratio=1",
    "resilience.preemption_notice=gcp",
]


@pytest.mark.parametrize("override", REFUSED)
def test_a_bad_value_is_told_in_one_line_that_names_its_field(override):
    (problem,) = problems(override)
    assert override.partition("=")[0] in problem


def test_the_refused_values_cover_every_field_that_can_have_one():
    fields = {f"cluster.{name}" for name in ClusterConfig.model_fields}
    fields |= {f"resilience.{name}" for name in ResilienceConfig.model_fields} - {"resilience.max_attempts"}
    assert {override.partition("=")[0] for override in REFUSED} == fields


def test_bad_values_of_several_fields_are_told_together():
    found = problems("cluster.gang=kueue", "cluster.grace_s=1", "resilience.run_timeout_s=0")
    assert len(found) == 3


# Credentials

CREDENTIALS = [
    "HF_TOKEN",
    "WANDB_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "PGPASSWORD_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
]


@pytest.mark.parametrize("name", CREDENTIALS)
def test_a_credential_is_refused_without_being_repeated(name):
    (problem,) = problems(cluster={"env": {name: "s3cr3t"}})
    assert f"set cluster.secrets to {{{name}: SECRET/KEY}}" in problem
    assert "s3cr3t" not in problem


@pytest.mark.parametrize("name", CREDENTIALS)
def test_a_credential_is_taken_from_a_secret(name):
    assert config(cluster={"secrets": {name: "a-secret/a.key_1"}}).cluster.secrets[name] == "a-secret/a.key_1"


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "NCCL_IB_PKEY", "MONKEY", "KEYS_OF", "TOKENS"])
def test_a_name_that_only_resembles_a_credential_is_taken(name):
    assert config(cluster={"env": {name: "1"}}).cluster.env == {name: "1"}


@pytest.mark.parametrize("field, content", [("env", "1"), ("secrets", "a/b")])
@pytest.mark.parametrize("name", ["PET_NNODES", "SHARDLINE_ATTEMPT"])
def test_variables_of_the_operator_and_of_the_launcher_are_refused(field, content, name):
    (problem,) = problems(cluster={field: {name: content}})
    assert name in problem
    assert "PET_* is the training operator's" in problem


# Fields that do not fit together


def test_etcd_and_its_address_go_together():
    (problem,) = problems("cluster.rendezvous=etcd")
    assert "set cluster.etcd_endpoint" in problem
    (problem,) = problems("cluster.etcd_endpoint=etcd:2379")
    assert "only with cluster.rendezvous etcd" in problem


@pytest.mark.parametrize(
    "name, content",
    [("gang", "volcano"), ("hyperpod_max_retries", 1), ("priority_class", "high"), ("rendezvous", "etcd")],
)
def test_what_a_trainjob_cannot_do_is_refused(name, content):
    cluster = {"launcher": "trainjob", name: content}
    if name == "rendezvous":
        cluster["etcd_endpoint"] = "etcd:2379"
    (problem,) = problems(cluster=cluster)
    assert f"cluster.{name} is set, but a TrainJob has no such choice" in problem
    assert config(cluster={**cluster, "launcher": "pytorchjob"})
