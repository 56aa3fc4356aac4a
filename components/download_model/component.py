"""Shell of the download_model step."""

from kfp import dsl

from components.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def download_model(store: str, run: str, model: dsl.Output[dsl.Model]) -> None:
    """Publish the run's model in the store, as safetensors with its tokenizer.

    A hub model is pinned to a commit and one in S3 to its ETags, a local folder is copied, a GGUF file is
    converted to bf16. A model that is in the store already is found by its fingerprint and not fetched again.
    Pickled checkpoints and code that comes with a model are never taken. With `model.init` random, weights are
    not taken either.

    Args:
        store: Root folder of the store.
        run: Name of the run.
        model: Points at the published folder, with source, revision, licence and size.
    """
    from components.download_model.download import download
    from components.step import Step
    from training.store import about

    with Step("download_model", store, run) as step:
        folder = download(step)
        model.uri = str(folder)
        # Kubeflow's metadata knows no null.
        facts = {key: value for key, value in about(folder).items() if value is not None}
        model.metadata.update(fingerprint=folder.name, **facts)
