"""Shell of the evaluate step."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(
    base_image=IMAGE,
    install_kfp_package=False,
    # What is set on this task is meant for the pods that measure; only volumes and environment are its own too.
    task_config_passthroughs=[
        dsl.TaskConfigField.RESOURCES,
        dsl.TaskConfigField.KUBERNETES_TOLERATIONS,
        dsl.TaskConfigField.KUBERNETES_NODE_SELECTOR,
        dsl.TaskConfigField.KUBERNETES_AFFINITY,
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.ENV, apply_to_task=True),
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.KUBERNETES_VOLUMES, apply_to_task=True),
    ],
)
def evaluate(
    store: str,
    run: str,
    job: str,
    metrics: dsl.Output[dsl.Metrics],
    report: dsl.Output[dsl.HTML],
    decision: dsl.Output[dsl.Markdown],
    task_config: dsl.TaskConfig,
) -> None:
    """Compare the tuned model with its base and with the champion, and let the gate decide.

    Held-out loss, answers and tasks are measured by a job of their own, through the same launcher as the training;
    models that were measured before are not measured again.

    Args:
        store: Root folder of the store.
        run: Name of the run.
        job: Name of the pipeline job.
        metrics: Held-out losses, perplexities and scores, speed and memory of the training.
        report: The report for people: verdict, decision, curves, answers side by side, data and lineage.
        decision: Whether the alias may move to the tuned model, and why.
        task_config: What was set on the task; given by Kubeflow, and passed on to the pods that measure.
    """
    from components.evaluate.evaluate import evaluate_run
    from components.jobs.describe import TaskSettings
    from components.step import Step

    with Step("evaluate", store, run) as step:
        evaluate_run(step, metrics, report.path, decision.path, TaskSettings.of(task_config), job)
