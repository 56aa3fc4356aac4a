"""Shell of the train step."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train(store: str, run: str, model: dsl.Output[dsl.Model]) -> None:
    """Fine-tune the model over all ranks, through as many attempts as it takes and the run allows.

    A run that was interrupted goes on from its newest checkpoint; a run that is finished is not trained again.

    Args:
        store: Root folder of the store.
        run: Name of the run.
        model: Pointer to the tuned model in the store.
    """
    from components.step import Step
    from components.train.supervisor import supervise

    with Step("train", store, run) as step:
        folder, metadata = supervise(step)
        model.uri = str(folder)
        model.metadata.update(metadata)
