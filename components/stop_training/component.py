"""Shell of the stop_training step."""

from kfp import dsl

from components.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def stop_training(
    store: str, run: str, job: str, status: dsl.PipelineTaskFinalStatus, report: dsl.Output[dsl.Markdown]
) -> None:
    """Leave nothing behind, however the pipeline ended: stop what still trains, sweep unfinished work.

    MLflow is told if the run did not get to its end. The step also says why the training failed, if it did:
    Kubeflow keeps no artifact of a step that failed.

    Args:
        store: Root folder of the store.
        run: Name of the run; empty: made from the pipeline job's name, as preflight does.
        job: Name of the pipeline job.
        status: How the pipeline ended; given by Kubeflow.
        report: Why the training failed, for people.
    """
    from pathlib import Path

    from components.step import ClosingStep
    from components.stop_training.cleanup import clean_up

    with ClosingStep("stop_training", store, run, job) as step:
        Path(report.path).write_text(clean_up(step, status.state), encoding="utf-8")
