"""Starts a run in a cluster: a recipe becomes the graph's parameters, and the graph a version on the server."""

import hashlib
import json
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import kfp_server_api
import yaml

from pipelines.compiler import COMPILED, with_image
from pipelines.finetune import STORE_MOUNT
from pipelines.kubeflow.client import Conflict, Kubeflow, named
from pipelines.kubeflow.schedule_time import uses_schedule_time
from training.credentials import shown
from training.errors import UserError
from training.hub import is_hub_id
from training.kubernetes_rules import is_name
from training.resolve import find_recipe, read_recipe, resolve
from training.run_folder import check_run_name, run_name_from_job
from training.sources.kinds import looks_like_file

T = TypeVar("T")

GRAPH = COMPILED / "finetune.yaml"
PIPELINE = "shardline-finetune"
EXPERIMENT = "shardline"
"""Name of the experiment that runs are shown under, unless another is given."""

_LONGEST_NAME = 128

_FILES = (".gguf", ".safetensors")
"""Endings that no name of a model has."""


@dataclass(frozen=True)
class GraphVersion:
    """A version of the graph on the server."""

    pipeline_id: str
    version_id: str
    name: str


@dataclass(frozen=True)
class SubmittedRun:
    """A run that the server has taken.

    Attributes:
        run_id: Kubeflow's id.
        name: The run's name, in Kubeflow as in the store.
        url: Where to watch it.
        version: Name of the graph's version.
    """

    run_id: str
    name: str
    url: str
    version: str


def submit(
    kubeflow: Kubeflow,
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    name: str = "",
    experiment: str = EXPERIMENT,
    service_account: str = "",
    parameters: Mapping[str, Any] | None = None,
    image: str = "",
) -> SubmittedRun:
    """Start a run of the graph that this package ships.

    Args:
        kubeflow: The connection.
        recipe: Name of a recipe that ships with Shardline, or path of a YAML file on this machine.
        overrides: `section.field=value` texts.
        name: Name of the run; naming one that is in the store resumes it. Empty: made up.
        experiment: Kubeflow's experiment; made if there is none of the name.
        service_account: Account that the steps run under; empty: the installation's.
        parameters: More of the graph's parameters, such as `store_claim`.
        image: Image of the steps, where it is not the published one.

    Raises:
        UserError: The recipe or a setting is wrong, the run's name cannot be, or the server refuses.
    """
    arguments = graph_arguments(recipe, overrides, parameters or {})
    if any(uses_schedule_time(value) for value in arguments.values() if isinstance(value, str)):
        raise UserError(
            "{scheduled:…} is the time at which a schedule fires: name the data without it for one run"
        )
    check_object_name("service account", service_account)
    name = name or new_run_name(recipe)
    check_run_name(name)
    graph = upload_graph(kubeflow, image)
    run = kubeflow.call(
        kubeflow.runs.run_service_create_run,
        run=kfp_server_api.V2beta1Run(
            display_name=name,
            experiment_id=experiment_id(kubeflow, experiment),
            pipeline_version_reference=kfp_server_api.V2beta1PipelineVersionReference(
                pipeline_id=graph.pipeline_id, pipeline_version_id=graph.version_id
            ),
            runtime_config=kfp_server_api.V2beta1RuntimeConfig(parameters={**arguments, "run": name}),
            service_account=service_account or None,
        ),
    )
    return SubmittedRun(run.run_id, name, run_url(kubeflow, run.run_id), graph.name)


def graph_arguments(recipe: str, overrides: Sequence[str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The graph's parameters for a recipe, checked on this machine before anything is sent.

    A recipe that ships with Shardline is in the image too and travels by its name; a file travels as its content.

    Raises:
        UserError: A setting is wrong, names a file of this machine, or is no parameter of the graph.
    """
    file = find_recipe(recipe)
    content = read_recipe(file)
    config = resolve(content, overrides)
    travels = file == Path(recipe)
    _check_reachable(config.model_dump(), {} if travels else content)
    arguments: dict[str, Any] = {"recipe": json.dumps(content, ensure_ascii=False) if travels else recipe}
    if overrides:
        arguments["overrides"] = json.dumps(list(overrides), ensure_ascii=False)
    if config.cluster.store_claim is not None:
        # The steps have to mount what the job will.
        parameters = {"store_claim": config.cluster.store_claim, **parameters}
    if parameters:
        known = graph_parameters()
        for key in parameters:
            if key not in known:
                raise UserError(f"'{key}' is no parameter of the graph (there are {', '.join(known)})")
        for key, what in (("store_claim", "claim"), ("secret", "secret")):
            check_object_name(what, str(parameters.get(key, "")))
    return {**arguments, **parameters}


def check_object_name(what: str, name: str) -> None:
    """Check the name of an object in Kubernetes; empty names none.

    Raises:
        UserError: There can be no object of this name.
    """
    if name and not is_name(name):
        raise UserError(
            f"the {what} {shown(name)} is not valid: name one that is in the cluster, with lower-case letters, "
            "digits, '-' and '.'"
        )


def graph_parameters() -> list[str]:
    """Names of the parameters that the shipped graph takes."""
    content = next(yaml.safe_load_all(GRAPH.read_text(encoding="utf-8")))
    return list(content["root"]["inputDefinitions"]["parameters"])


def new_run_name(recipe: str) -> str:
    """A name for a new run, which begins with the recipe's."""
    base = run_name_from_job(Path(recipe).stem[:24])
    return f"{base}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def upload_graph(kubeflow: Kubeflow, image: str = "") -> GraphVersion:
    """The shipped graph as a version on the server, uploaded unless it is there.

    The version is named after the package's version and the graph's checksum, so the same graph is never uploaded
    twice, and two different ones never share a name.

    Args:
        kubeflow: The connection.
        image: Image of the steps, where it is not the published one; see `pipelines.compiler.with_image`.

    Raises:
        UserError: The server refuses.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / GRAPH.name
        file.write_text(with_image(GRAPH.read_text(encoding="utf-8"), image), encoding="utf-8")
        return _upload(kubeflow, file)


def _upload(kubeflow: Kubeflow, file: Path) -> GraphVersion:
    pipeline = _make_once(
        lambda: find_pipeline(kubeflow),
        lambda: (
            kubeflow.call(
                kubeflow.uploads.upload_pipeline,
                str(file),
                name=PIPELINE,
                display_name=PIPELINE,
                description="Fine-tune a Hugging Face model with PyTorch FSDP",
                namespace=kubeflow.namespace or None,
            ).pipeline_id
        ),
    )
    name = version_name(file.read_text(encoding="utf-8"))
    return _make_once(
        lambda: find_version(kubeflow, pipeline, name),
        lambda: GraphVersion(
            pipeline,
            kubeflow.call(
                kubeflow.uploads.upload_pipeline_version,
                str(file),
                name=name,
                display_name=name,
                pipelineid=pipeline,
                description=f"Shardline {version('shardline')}",
            ).pipeline_version_id,
            name,
        ),
    )


def find_graph(kubeflow: Kubeflow, name: str) -> GraphVersion:
    """A version that was uploaded before.

    Raises:
        UserError: There is none of the name; the message lists those that there are.
    """
    pipeline = find_pipeline(kubeflow)
    found = find_version(kubeflow, pipeline, name) if pipeline else None
    if found is not None:
        return found
    names = [v.display_name for v in _versions(kubeflow, pipeline, sort_by="created_at desc")] if pipeline else []
    raise UserError(
        f"the pipeline '{PIPELINE}' has no version '{name}': "
        + (f"name one of {', '.join(names[:10])}" if names else "submit a run first, which uploads one")
    )


def find_version(kubeflow: Kubeflow, pipeline: str, name: str) -> GraphVersion | None:
    """The version of this name, or None."""
    found = next(_versions(kubeflow, pipeline, filter=named("display_name", name)), None)
    return None if found is None else GraphVersion(pipeline, found.pipeline_version_id, name)


def version_name(graph: str | None = None) -> str:
    """Name of a graph's version on a server; None: of the shipped one."""
    content = GRAPH.read_text(encoding="utf-8") if graph is None else graph
    return f"{version('shardline')}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def experiment_id(kubeflow: Kubeflow, name: str) -> str:
    """Id of the experiment of this name, which is made if there is none.

    Raises:
        UserError: The name cannot be, or the server refuses.
    """
    if not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise UserError(f"the experiment's name {shown(name)} is not valid: give 1 to {_LONGEST_NAME} characters")
    api = kubeflow.experiments
    options = {"namespace": kubeflow.namespace, "filter": named("display_name", name)}
    wanted = kfp_server_api.V2beta1Experiment(display_name=name, namespace=kubeflow.namespace)
    found = _make_once(
        lambda: next(kubeflow.each(api.experiment_service_list_experiments, "experiments", **options), None),
        lambda: kubeflow.call(api.experiment_service_create_experiment, experiment=wanted),
    )
    return str(found.experiment_id)


def run_url(kubeflow: Kubeflow, run_id: str) -> str:
    """Where the web interface shows a run."""
    return f"{kubeflow.links}/#/runs/details/{run_id}"


def find_pipeline(kubeflow: Kubeflow) -> str | None:
    """Id of the graph's pipeline on the server, or None."""
    api = kubeflow.pipelines
    options = {"namespace": kubeflow.namespace, "filter": named("display_name", PIPELINE)}
    found = next(kubeflow.each(api.pipeline_service_list_pipelines, "pipelines", **options), None)
    return None if found is None else str(found.pipeline_id)


def _make_once(find: Callable[[], T | None], make: Callable[[], T]) -> T:
    """What is found, or else made; where somebody else makes it at the same time, it is theirs."""
    found = find()
    if found is not None:
        return found
    try:
        return make()
    except Conflict:
        found = find()
        if found is None:
            raise
        return found


def _versions(kubeflow: Kubeflow, pipeline: str, **options: Any) -> Any:
    listing = kubeflow.pipelines.pipeline_service_list_pipeline_versions
    return kubeflow.each(listing, "pipeline_versions", pipeline_id=pipeline, **options)


def _check_reachable(config: Mapping[str, Any], shipped: Mapping[str, Any]) -> None:
    """A relative path means a file of this machine, which is not in the cluster.

    Args:
        config: The resolved configuration.
        shipped: Content of a recipe that ships with Shardline; what it names is in the image too.

    Raises:
        UserError: A setting names such a file.
    """
    problems = []
    for section, field in (("model", "name"), ("data", "train"), ("data", "heldout")):
        given = config[section][field]
        if not given or given == shipped.get(section, {}).get(field):
            continue
        named = [given] if isinstance(given, str) else [source["source"] for source in given]
        problems += [
            f"{section}.{field} is '{value}', a file of this machine, which the cluster does not have: give "
            f"an absolute path on the claim, as in {STORE_MOUNT}/data/train.jsonl, an s3:// address or a hub id"
            for value in named
            if _is_relative_path(value)
        ]
    if problems:
        raise UserError("\n".join(problems))


def _is_relative_path(value: str) -> bool:
    path = Path(value)
    if path.is_absolute() or "://" in value:
        return False
    return looks_like_file(value) or path.suffix in _FILES or not is_hub_id(value) or path.exists()
