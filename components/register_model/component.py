"""Shell of the register_model step."""

from kfp import dsl

from components.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def register_model(
    store: str, run: str, registered: dsl.Output[dsl.Model], summary: dsl.Output[dsl.Markdown]
) -> None:
    """Log the run to MLflow, register the tuned model as a version, and carry out the gate's decision.

    A re-run of the step finds the MLflow run and the version that it made before. The alias stays if it moved
    meanwhile to a version that the tuned model was not compared with.

    Args:
        store: Root folder of the store.
        run: Name of the run.
        registered: The version in the registry, `models:/<name>/<version>`.
        summary: The gate's decision with its reasons, for people.
    """
    from pathlib import Path

    from components.register_model.register import register_run
    from components.step import Step

    with Step("register_model", store, run) as step:
        registration = register_run(step)
        registered.uri = registration.uri
        registered.metadata.update(registration.metadata())
        Path(summary.path).write_text(registration.summary, encoding="utf-8")
