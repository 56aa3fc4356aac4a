"""Shell of the train step."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(
    base_image=IMAGE,
    install_kfp_package=False,
    # What is set on this task is meant for the pods that train; only volumes and environment are its own too.
    task_config_passthroughs=[
        dsl.TaskConfigField.RESOURCES,
        dsl.TaskConfigField.KUBERNETES_TOLERATIONS,
        dsl.TaskConfigField.KUBERNETES_NODE_SELECTOR,
        dsl.TaskConfigField.KUBERNETES_AFFINITY,
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.ENV, apply_to_task=True),
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.KUBERNETES_VOLUMES, apply_to_task=True),
    ],
)
def train(
    store: str,
    run: str,
    job: str,
    model: dsl.Output[dsl.Model],
    timeline: dsl.Output[dsl.HTML],
    task_config: dsl.TaskConfig,
) -> None:
    """Fine-tune the model over all ranks, through as many attempts as it takes and the run allows.

    A run that was interrupted goes on from its newest checkpoint; a run that is finished is not trained again. In
    a cluster each attempt is a job, which this step follows; started again after its own end, it finds the job
    that it made.

    Args:
        store: Root folder of the store.
        run: Name of the run.
        job: Name of the pipeline job.
        model: Pointer to the tuned model in the store.
        timeline: Where the time of all attempts went, what failed, and what was done about it. Of a step that
            failed, Kubeflow keeps none: the same page is in the run's folder.
        task_config: What was set on the task; given by Kubeflow, and passed on to the pods that train.
    """
    import shutil

    from components.jobs.describe import TaskSettings
    from components.step import Step
    from components.train.supervisor import supervise

    with Step("train", store, run) as step:
        folder, metadata = supervise(step, TaskSettings.of(task_config), job)
        model.uri = str(folder)
        model.metadata.update(metadata)
        shutil.copyfile(step.folder.timeline, timeline.path)
