"""Shell of the check_nodes step."""

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
def check_nodes(
    store: str, run: str, job: str, report: dsl.Output[dsl.Markdown], task_config: dsl.TaskConfig
) -> None:
    """Let all ranks compute the same and measure the network between every two nodes, before they train.

    Only where `resilience.deep_checks` asks for it; else the step ends at once. The ranks are those of the
    training, in a job of their own through the same launcher. Machines that fall short are not used by the run.

    Args:
        store: Root folder of the store.
        run: Name of the run.
        job: Name of the pipeline job.
        report: What each rank and each pair of nodes reached, and which machines are left out.
        task_config: What was set on the task; given by Kubeflow, and passed on to the pods that measure.
    """
    from components.check_nodes.check_nodes import check_run
    from components.jobs.describe import TaskSettings
    from components.step import Step

    with Step("check_nodes", store, run) as step:
        check_run(step, report.path, TaskSettings.of(task_config), job)
