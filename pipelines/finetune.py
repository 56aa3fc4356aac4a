"""The `finetune` graph: data and model in, an evaluated and registered model out."""

from collections.abc import Iterable

from kfp import dsl, kubernetes

from components.check_nodes.component import check_nodes as check_nodes_step
from components.download_model.component import download_model as download_model_step
from components.evaluate.component import evaluate as evaluate_step
from components.preflight.component import preflight as preflight_step
from components.register_model.component import register_model as register_model_step
from components.stop_training.component import stop_training as stop_training_step
from components.tokenize_dataset.component import tokenize_dataset as tokenize_dataset_step
from components.train.component import train as train_step

STORE_MOUNT = "/mnt/shardline"

_HUB = ("HF_TOKEN",)
_OBJECT_STORE = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
)
_TRACKING = (
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    *_OBJECT_STORE,
)

_RESTARTS = 3
"""How often Kubeflow starts a step that follows a job again when its pod is lost. The job goes on and is found."""


# Above the graph, because the decorator traces the graph as soon as it is defined.
def _on_store(task: dsl.PipelineTask, claim: str) -> dsl.PipelineTask:
    """Mount the store, and leave caching to it: it knows what is still there, and Kubeflow does not."""
    task.set_caching_options(False)
    return kubernetes.mount_pvc(task, pvc_name=claim, mount_path=STORE_MOUNT)


def _with_secret(task: dsl.PipelineTask, secret: str, keys: Iterable[str]) -> dsl.PipelineTask:
    """Give a task these keys of the secret as environment, as far as they are there."""
    return kubernetes.use_secret_as_env(task, secret, {key: key for key in keys}, optional=True)


@dsl.pipeline(name="shardline-finetune")
def finetune(
    recipe: str = "quickstart",
    model: str = "",
    model_revision: str = "",
    train_data: str = "",
    heldout_data: str = "",
    epochs: float = 0.0,
    max_steps: int = 0,
    learning_rate: float = 0.0,
    global_batch_size: int = 0,
    sequence_length: int = 0,
    precision: str = "",
    strategy: str = "",
    num_nodes: int = 0,
    procs_per_node: int = 0,
    registered_model: str = "",
    mlflow_tracking_uri: str = "",
    overrides: str = "",
    run: str = "",
    store: str = STORE_MOUNT,
    store_claim: str = "shardline-store",
    secret: str = "shardline-credentials",
    skip_unchanged: bool = False,
) -> None:
    """Fine-tune a Hugging Face causal language model with PyTorch FSDP, evaluate it, and register it in MLflow.

    A parameter that is left empty (or 0) keeps the recipe's value. Parameters win over overrides, and overrides
    over the recipe.

    Args:
        recipe: Name of a recipe that ships with Shardline, path of a YAML file in the store, or the text of one.
        model: Model to fine-tune: hub id, folder, s3:// address, .gguf file, or package://PACKAGE/FILE.gguf.
        model_revision: Branch, tag or commit of a hub model.
        train_data: Training data: a file, folder, glob or s3:// address of JSONL, JSON, CSV, Parquet, Arrow or
            text, or a hub data set id.
        heldout_data: Held-out data, likewise.
        epochs: Passes over the training data.
        max_steps: Optimizer steps; wins over epochs.
        learning_rate: Peak learning rate.
        global_batch_size: Packed samples per optimizer step, over all ranks.
        sequence_length: Tokens in a packed sample.
        precision: auto, bf16 or fp32.
        strategy: FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD or NO_SHARD.
        num_nodes: Nodes that train together, each a pod.
        procs_per_node: Ranks on a node, which is one per GPU.
        registered_model: Name of the model in MLflow's registry.
        mlflow_tracking_uri: MLflow server; by default SQLite inside the store.
        overrides: Any other setting as section.field=value, separated by ; or line breaks, or a JSON list.
        run: Name of the run; by default the pipeline job's. A run of the same name and configuration resumes.
        store: Root folder of the store.
        store_claim: PersistentVolumeClaim (ReadWriteMany) that is mounted at /mnt/shardline.
        secret: Secret with credentials, as far as they are needed, under the keys HF_TOKEN,
            MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD, MLFLOW_TRACKING_TOKEN, AWS_ACCESS_KEY_ID,
            AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_ENDPOINT_URL and AWS_REGION. It need not exist.
        skip_unchanged: Do nothing if a finished run was trained from the same data, model and settings.
    """
    job = dsl.PIPELINE_JOB_NAME_PLACEHOLDER
    stop = _on_store(stop_training_step(store=store, run=run, job=job), store_claim)
    _with_secret(stop, secret, _TRACKING)
    with dsl.ExitHandler(stop):
        prepared = preflight_step(
            store=store,
            run=run,
            job=job,
            recipe=recipe,
            model=model,
            model_revision=model_revision,
            train_data=train_data,
            heldout_data=heldout_data,
            epochs=epochs,
            max_steps=max_steps,
            learning_rate=learning_rate,
            global_batch_size=global_batch_size,
            sequence_length=sequence_length,
            precision=precision,
            strategy=strategy,
            num_nodes=num_nodes,
            procs_per_node=procs_per_node,
            registered_model=registered_model,
            mlflow_tracking_uri=mlflow_tracking_uri,
            overrides=overrides,
            store_claim=store_claim,
            skip_unchanged=skip_unchanged,
        )
        _with_secret(_on_store(prepared, store_claim), secret, (*_HUB, *_TRACKING))
        name = prepared.outputs["Output"]
        with dsl.If(name != "", name="something-to-train"):
            downloaded = _on_store(download_model_step(store=store, run=name), store_claim)
            _with_secret(downloaded, secret, (*_HUB, *_OBJECT_STORE))
            tokenized = _on_store(tokenize_dataset_step(store=store, run=name), store_claim)
            _with_secret(tokenized, secret, (*_HUB, *_OBJECT_STORE))
            checked = _on_store(check_nodes_step(store=store, run=name, job=job), store_claim)
            checked.set_retry(_RESTARTS, backoff_duration="30s")
            trained = _on_store(train_step(store=store, run=name, job=job), store_claim)
            trained.after(downloaded, tokenized, checked).set_retry(_RESTARTS, backoff_duration="30s")
            _with_secret(trained, secret, _TRACKING)
            evaluated = _on_store(evaluate_step(store=store, run=name, job=job), store_claim).after(trained)
            evaluated.set_retry(_RESTARTS, backoff_duration="30s")
            _with_secret(evaluated, secret, (*_HUB, *_TRACKING))
            registered = _on_store(register_model_step(store=store, run=name), store_claim).after(evaluated)
            _with_secret(registered, secret, _TRACKING)
