"""Shell of the evaluate step."""

from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def evaluate(store: str, run: str, metrics: dsl.Output[dsl.Metrics], report: dsl.Output[dsl.HTML]) -> None:
    """Compare the tuned model with its base on the held-out rows, in figures and side by side in words.

    Args:
        store: Root folder of the store.
        run: Name of the run.
        metrics: Held-out loss and perplexity of both models, speed and memory of the training.
        report: The report for people: verdict, curves, answers of both models, data and lineage.
    """
    from components.evaluate.evaluate import evaluate_run
    from components.step import Step

    with Step("evaluate", store, run) as step:
        evaluate_run(step, metrics, report.path)
