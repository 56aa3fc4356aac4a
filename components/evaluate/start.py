"""The base model of a run that does not start from the published weights alone."""

from pathlib import Path

from transformers import GenerationConfig, PreTrainedModel

from components.evaluate.settings import Settings
from training.initialize import init_weights
from training.model import build_on_meta, load_weights, materialize
from training.store import about
from training.vocabulary import embedding_rows


def build_start(folder: Path, dataset: Path, settings: Settings) -> PreTrainedModel:
    """Build what the training starts from, by the code that the ranks build it with.

    With `model.init` random it has new weights, the same as on the ranks; with `model.resize_vocabulary` it has an
    embedding for every token of the data.

    Args:
        folder: The published model.
        dataset: The published data set.
        settings: How to measure.
    """
    num_rows = embedding_rows(about(folder), about(dataset), settings.resize_vocabulary)
    model = build_on_meta(folder, settings.attention, settings.dtype, num_rows)
    materialize(model, settings.device)
    if settings.seed_of_weights is None:
        load_weights(model, folder)
    else:
        init_weights(model, settings.seed_of_weights)
    if (folder / "generation_config.json").is_file():
        # Answers end at the tokens that it names.
        model.generation_config = GenerationConfig.from_pretrained(folder)
    model.config.use_cache = True
    return model.eval()
