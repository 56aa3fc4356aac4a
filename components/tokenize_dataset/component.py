"""Shell of the tokenize_dataset step."""

from kfp import dsl

from components.image import STEPS_IMAGE


@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def tokenize_dataset(store: str, run: str, dataset: dsl.Output[dsl.Dataset], report: dsl.Output[dsl.HTML]) -> None:
    """Publish the run's data in the store, tokenized and packed into samples of `data.sequence_length`.

    Rows are held out for evaluation, rendered with the model's chat template, supervised where the assistant
    speaks, mixed by the sources' weights, and packed without cutting a document (`data.packing`), unless it is
    longer than a sample (`data.long_documents`). Equal rows are dropped (`data.deduplicate`). Data that is in the
    store already, made from the same rows with the same settings and tokenizer, is found by its fingerprint and
    not tokenized again.

    Args:
        store: Root folder of the store.
        run: Name of the run.
        dataset: Points at the published folder, with counts, source, revision and fingerprints.
        report: Statistics for people: lengths, fill, what was dropped and why, a document of each source.
    """
    import shutil

    from components.step import Step
    from components.tokenize_dataset.tokenize import STATISTICS, tokenize
    from training.store import about

    with Step("tokenize_dataset", store, run) as step:
        folder = tokenize(step)
        dataset.uri = str(folder)
        # Kubeflow's metadata knows no null.
        facts = {key: value for key, value in about(folder).items() if value is not None}
        dataset.metadata.update(fingerprint=folder.name, **facts)
        shutil.copyfile(folder / STATISTICS, report.path)
