"""Shell of the preflight step."""

from kfp import dsl

from components.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def preflight(
    store: str,
    run: str,
    job: str,
    recipe: str,
    model: str,
    model_revision: str,
    train_data: str,
    heldout_data: str,
    epochs: float,
    max_steps: int,
    learning_rate: float,
    global_batch_size: int,
    sequence_length: int,
    precision: str,
    strategy: str,
    num_nodes: int,
    procs_per_node: int,
    registered_model: str,
    mlflow_tracking_uri: str,
    overrides: str,
    store_claim: str,
    skip_unchanged: bool,
    config: dsl.Output[dsl.Markdown],
) -> str:
    """Resolve the configuration and check, within seconds, what would make a later step fail.

    An empty or zero parameter keeps the recipe's value.

    Args:
        store: Root folder of the store.
        run: Name of the run; empty: made from the pipeline job's name.
        job: Name of the pipeline job.
        recipe: Name of a recipe that ships with Shardline, path of one, or its text.
        model: Sets model.name.
        model_revision: Sets model.revision.
        train_data: Sets data.train.
        heldout_data: Sets data.heldout.
        epochs: Sets training.epochs.
        max_steps: Sets training.max_steps.
        learning_rate: Sets training.learning_rate.
        global_batch_size: Sets training.global_batch_size.
        sequence_length: Sets data.sequence_length.
        precision: Sets training.precision.
        strategy: Sets parallel.strategy.
        num_nodes: Sets parallel.num_nodes.
        procs_per_node: Sets parallel.procs_per_node.
        registered_model: Sets registry.model_name.
        mlflow_tracking_uri: Sets registry.tracking_uri.
        overrides: Other settings as section.field=value, separated by ; or line breaks, or a JSON list.
        store_claim: Sets cluster.store_claim, where the training is a job in the cluster.
        skip_unchanged: Whether to stop here if a finished run was trained from the same data, model and settings.
        config: The checks and the resolved configuration, for people.

    Returns:
        The run's name; empty if there is nothing to train.
    """
    from pathlib import Path

    from components.preflight.prepare import prepare
    from components.step import Step

    flat = {
        "model.name": model,
        "model.revision": model_revision,
        "data.train": train_data,
        "data.heldout": heldout_data,
        "training.epochs": epochs,
        "training.max_steps": max_steps,
        "training.learning_rate": learning_rate,
        "training.global_batch_size": global_batch_size,
        "data.sequence_length": sequence_length,
        "training.precision": precision,
        "parallel.strategy": strategy,
        "parallel.num_nodes": num_nodes,
        "parallel.procs_per_node": procs_per_node,
        "registry.model_name": registered_model,
        "registry.tracking_uri": mlflow_tracking_uri,
    }
    with Step("preflight", store, run, job) as step:
        prepared = prepare(step, recipe, overrides, flat, store_claim, skip_unchanged=skip_unchanged)
        Path(config.path).write_text(prepared.page, encoding="utf-8")
    return step.run if prepared.proceed else ""
