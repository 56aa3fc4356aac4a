import re

import pytest
from mlflow.exceptions import MlflowException
from mlflow.utils import validation as mlflow_rules
from pydantic import ValidationError

from training.config import RunConfig, check_world_size
from training.errors import UserError
from training.resolve import resolve

MINIMAL = {"model": {"name": "org/model"}, "data": {"train": "org/data"}}


def config(*overrides):
    return resolve(MINIMAL, overrides)


def problems(*overrides):
    with pytest.raises(UserError) as caught:
        config(*overrides)
    return str(caught.value).splitlines()


def test_every_field_says_what_it_does():
    for name, section in RunConfig.model_fields.items():
        undescribed = [key for key, field in section.annotation.model_fields.items() if not field.description]
        assert undescribed == [], name


def test_every_default_passes_its_own_checks():
    assert config() == RunConfig.model_validate(config().model_dump())


def test_configs_do_not_share_their_sections():
    config().training.seed = 7
    assert config().training.seed == 42


@pytest.mark.parametrize(
    "override",
    [
        "training.epochs=0",
        "training.epochs=.inf",
        "training.epochs=nan",
        "training.max_steps=0",
        "training.global_batch_size=0",
        "training.micro_batch_size=-1",
        "training.learning_rate=0",
        "training.learning_rate=inf",
        "training.learning_rate=1e400",
        "training.warmup_ratio=1.01",
        "training.weight_decay=-0.1",
        "training.adam_beta1=1",
        "training.adam_eps=0",
        "training.max_grad_norm=0",
        "training.max_grad_norm=.nan",
        "training.seed=-1",
        "training.seed=4294967296",
        "training.precision=fp16",
        "data.sequence_length=7",
        "data.heldout_fraction=-0.1",
        "data.heldout_fraction=.nan",
        "data.format=csv",
        "model.name=",
        "model.max_context=0",
        "parallel.num_nodes=0",
        "parallel.strategy=full_shard",
        "checkpoint.keep=0",
        "checkpoint.every_s=0",
        "checkpoint.timeout_s=0",
        "checkpoint.local_folder=checkpoints",
        "checkpoint.local_folder=/local/../etc",
        "resilience.max_attempts=0",
        "registry.alias=1st",
        "registry.model_name=a/b",
        "registry.model_name=''",
        "registry.min_improvement=-1",
        "cluster.launcher=ray",
    ],
)
def test_a_value_out_of_range_is_refused_by_the_name_of_its_field(override):
    (problem,) = problems(override)
    assert override.partition("=")[0] in problem


def test_a_global_batch_has_to_be_whole_micro_batches():
    (problem,) = problems("training.global_batch_size=7", "training.micro_batch_size=2")
    assert "training.global_batch_size is 7" in problem
    assert "training.micro_batch_size 2" in problem
    assert problem.endswith("the next that is, is 8")


def test_a_global_batch_has_to_divide_among_the_ranks():
    (problem,) = problems("training.global_batch_size=8", "parallel.procs_per_node=12", "data.format=text")
    assert "12 ranks" in problem
    assert problem.endswith("the next that is, is 12")


def test_a_global_batch_has_to_divide_among_the_nodes_before_their_ranks_are_known():
    (problem,) = problems("training.global_batch_size=8", "parallel.num_nodes=3")
    assert "not a multiple of 3 ranks" in problem


@pytest.mark.parametrize("world_size", range(1, 10))
@pytest.mark.parametrize("micro_batch_size", [1, 2, 3])
def test_the_batch_that_an_error_names_is_accepted(world_size, micro_batch_size):
    batch = 10 * micro_batch_size
    built = config(f"training.global_batch_size={batch}", f"training.micro_batch_size={micro_batch_size}")
    try:
        check_world_size(built, world_size)
    except ValueError as error:
        batch = int(re.search(r"is (\d+)$", str(error))[1])
        check_world_size(
            config(f"training.global_batch_size={batch}", f"training.micro_batch_size={micro_batch_size}"),
            world_size,
        )
    assert batch % (world_size * micro_batch_size) == 0


def test_a_shard_group_has_to_divide_the_ranks_and_the_error_names_the_ones_that_do():
    (problem,) = problems(
        "parallel.strategy=HYBRID_SHARD", "parallel.shard_group_size=3", "parallel.procs_per_node=8"
    )
    assert problem.endswith("choose one of 1, 2, 4, 8")
    assert (
        config(
            "parallel.strategy=HYBRID_SHARD", "parallel.shard_group_size=4", "parallel.procs_per_node=8"
        ).parallel.shard_group_size
        == 4
    )


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
@pytest.mark.parametrize("ranks", ["parallel.procs_per_node=4", "parallel.procs_per_node=null"])
def test_a_shard_group_without_hybrid_sharding_is_refused(strategy, ranks):
    (problem,) = problems(f"parallel.strategy={strategy}", "parallel.shard_group_size=2", ranks)
    assert "HYBRID_SHARD" in problem


def test_a_sequence_longer_than_the_context_is_refused():
    (problem,) = problems("model.max_context=512", "data.sequence_length=513")
    assert "data.sequence_length is 513" in problem
    assert "512" in problem
    assert config("model.max_context=512", "data.sequence_length=512").data.sequence_length == 512


def test_a_run_needs_something_to_evaluate_on():
    (problem,) = problems("data.heldout_fraction=0")
    assert "data.heldout" in problem
    assert config("data.heldout_fraction=0", "data.heldout=held.jsonl").data.heldout == "held.jsonl"


def test_the_local_launcher_has_one_node():
    (problem,) = problems("cluster.launcher=local", "parallel.num_nodes=2")
    assert "parallel.num_nodes is 2, but cluster.launcher local runs on one node" in problem
    assert "set parallel.num_nodes to 1" in problem
    of_training, of_evaluation = problems(
        "cluster.launcher=local", "parallel.num_nodes=2", "evaluation.num_nodes=3"
    )
    assert "parallel.num_nodes is 2" in of_training and "set evaluation.num_nodes to 1" in of_evaluation
    assert config("parallel.num_nodes=2").parallel.num_nodes == 2, "where there is a cluster, it has several"


def test_fields_that_do_not_fit_together_are_all_listed_at_once():
    found = problems(
        "training.global_batch_size=5",
        "training.micro_batch_size=2",
        "parallel.shard_group_size=2",
        "parallel.num_nodes=2",
        "parallel.procs_per_node=2",
        "cluster.launcher=local",
        "model.max_context=8",
        "data.heldout_fraction=0",
    )
    subjects = ("global_batch_size is", "shard_group_size", "max_context", "to evaluate on", "cluster.launcher")
    for subject in subjects:
        assert [line for line in found if subject in line] != [], subject
    assert len(found) == len(subjects)


def test_a_world_that_fits_neither_batch_nor_shard_group_is_told_of_both():
    built = config("parallel.strategy=HYBRID_SHARD", "parallel.shard_group_size=2")
    with pytest.raises(ValueError, match=r"(?s)global_batch_size.*\n.*shard_group_size") as caught:
        check_world_size(built, 7)
    assert not isinstance(caught.value, ValidationError)


@pytest.mark.parametrize(
    "uri",
    [
        "https://alice:hunter2@mlflow.example/",
        "https://hunter2@mlflow.example/",
        "postgresql://alice:hunter2@db/mlflow",
        "postgresql://db/mlflow?password=hunter2",
        "postgresql://db/mlflow?sslmode=on&user=hunter2",
        "postgresql://db/mlflow?PASSWORD=hunter2",
        "mysql://db/mlflow?ssl=1&Passwd=hunter2",
        "https://mlflow.example/?token=hunter2",
        "https://mlflow.example/?access_token=hunter2",
        "mssql+pyodbc://db/mlflow?driver=x;pwd=hunter2",
    ],
)
def test_credentials_in_the_tracking_uri_are_refused_and_not_echoed(uri):
    (problem,) = problems(f"registry.tracking_uri={uri}")
    assert "MLFLOW_TRACKING_PASSWORD" in problem
    assert "hunter2" not in problem
    assert "alice" not in problem


@pytest.mark.parametrize(
    "override",
    [
        f"{field}={value}"
        for field in ("registry.tracking_uri", "registry.tracking_url", "registr.tracking_uri", "tracking_uri")
        for value in (
            "https://alice:hunter2@mlflow.example/",
            "[https://alice:hunter2@mlflow.example/]",
            "{uri: 'https://alice:hunter2@mlflow.example/'}",
            "'https://alice:hunter2@mlflow.example/",
            "https://alice:hunter2@mlflow.example/: [",
        )
    ],
)
def test_credentials_are_not_echoed_from_an_override_that_is_wrong_in_another_way(override):
    found = "\n".join(problems(override, "training.epochs=-1"))
    assert "hunter2" not in found
    assert "alice" not in found


@pytest.mark.parametrize(
    "uri",
    [
        "http://mlflow.mlflow.svc:5000",
        "https://mlflow.example/path?workspace=team",
        "sqlite:////data/me@work/mlflow.db",
        "postgresql://db/mlflow?sslmode=require",
        "databricks",
    ],
)
def test_a_tracking_uri_without_credentials_is_accepted(uri):
    assert config(f"registry.tracking_uri={uri}").registry.tracking_uri == uri


@pytest.mark.parametrize("alias", ["candidate", "Candidate", "latest", "LATEST", "v1", "V1", "v007"])
def test_a_reserved_alias_is_refused(alias):
    (problem,) = problems(f"registry.alias={alias}")
    assert f"registry.alias is '{alias}'" in problem


@pytest.mark.parametrize(
    "alias",
    ["champion", "v", "version1", "v1a", "prod-EU", "a_b", "latest", "Latest", "v1", "V12", "ü", "a b", "-x"],
)
def test_an_alias_that_passes_is_one_that_mlflow_takes(alias):
    try:
        accepted = config(f"registry.alias={alias}").registry.alias
    except UserError:
        return
    mlflow_rules._validate_model_alias_name(accepted)
    mlflow_rules._validate_model_alias_name_reserved(accepted)


@pytest.mark.parametrize("name", ["a", "my model", "ünï", "a.b", "a/b", "a:b", "''", "' '", "'\t'", ".", ".."])
def test_a_model_name_that_passes_is_one_that_mlflow_takes(name):
    try:
        accepted = config(f"registry.model_name={name}").registry.model_name
    except UserError:
        return
    try:
        mlflow_rules._validate_model_name(accepted)
    except MlflowException as error:
        pytest.fail(f"{accepted!r}: {error}")
