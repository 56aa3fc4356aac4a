"""From `data` to a published folder of packed samples."""

import time
from pathlib import Path
from typing import Any

from components.step import Step
from components.tokenize_dataset.malformed import check_malformed
from training.config import DataConfig
from training.hub import quiet_libraries
from training.model_source import load_tokenizer, pin, tokenizer_key
from training.sources.open import open_heldout, open_train
from training.sources.rows import Source
from training.store import Store, about, fingerprint

STATISTICS = "statistics.html"

_VERSION = 3
"""Raise it when the same rows and settings give other samples than before."""

_MANY_PASSES = 4
"""Passes in an epoch from which repetition teaches little more (Muennighoff et al., 2023)."""


def tokenize(step: Step) -> Path:
    """Publish the run's packed samples, unless they are in the store already.

    The folder holds `train.arrow` and `heldout.arrow` (see `SampleWriter`; source by source), `prompts.jsonl` with
    a line for each held-out row that asks something: prompt (rendered, up to where the answer begins; it holds its
    special tokens), question, reference and source; and `statistics.html`.

    Returns:
        `<root>/datasets/<key>`.

    Raises:
        UserError: The data or the tokenizer cannot be had, or more rows than `data.max_malformed_rows` cannot be
            used; names them.
    """
    quiet_libraries()
    started = time.monotonic()
    config = step.folder.config()
    data = config.data
    # Pinned once, so that a branch that moves meanwhile cannot split key and content.
    model = config.model.model_copy(update={"revision": pin(config.model)})
    train, heldout = open_train(data), open_heldout(data)
    key = dataset_key(data, train, heldout, tokenizer_key(model))
    store = Store(step.folder.root)
    folder = store.get("datasets", key)
    found = folder is not None
    if folder is None:
        # Here, because it imports torch and transformers, which data that is in the store does without.
        from components.tokenize_dataset.build import Sources, build

        # The manifest is written when the block ends, and by then the facts are known.
        made: dict[str, Any] = {}
        with store.publish("datasets", key, made) as staging:
            made.update(build(staging, data, load_tokenizer(model), Sources(train, heldout), step.note))
        folder = store.path("datasets", key)
    facts = about(folder)
    # Those that were left out may have been allowed when the data was made.
    check_malformed(facts["num_malformed"], data.max_malformed_rows, facts["malformed"])
    step.folder.save_input("dataset", folder)
    _say(step, facts, found, time.monotonic() - started)
    return folder


def dataset_key(data: DataConfig, train: tuple[Source, ...], heldout: tuple[Source, ...], tokenizer: str) -> str:
    """Key of the published samples: all that they are made from, and nothing else.

    Args:
        data: The config.
        train: Rows to train on.
        heldout: Rows to evaluate on, if they have sources of their own.
        tokenizer: Fingerprint of the tokenizer with its chat template.
    """
    return fingerprint(
        train=[source.content for source in train],
        heldout=[source.content for source in heldout] or data.heldout_fraction,
        sources=[
            [source.name, source.format, source.columns, source.weight]
            for source in (*data.train_sources, *data.heldout_sources)
        ],
        prompt_template=data.prompt_template,
        system_prompt=data.system_prompt,
        special_tokens=data.special_tokens,
        sequence_length=data.sequence_length,
        long_documents=data.long_documents,
        packing=data.packing,
        deduplicate=data.deduplicate,
        max_train_rows=data.max_train_rows,
        tokenizer=tokenizer,
        version=_VERSION,
    )


def _say(step: Step, facts: dict[str, Any], found: bool, seconds: float) -> None:
    rows = f"{facts['num_train_rows']:,} rows → {facts['num_train_samples']:,} samples"
    supervised = facts["num_train_supervised"] / facts["num_train_tokens"]
    step.note(
        f"{'data already in the store: ' if found else ''}{rows} {_size_of_samples(facts)}, "
        f"{supervised:.0%} of tokens supervised; {facts['num_heldout_rows']:,} rows held out; "
        f"in {seconds:.1f} s".replace("%", " %")
    )
    for source in facts["train_sources"]:
        if source["passes"] > _MANY_PASSES:
            step.note(
                f"{source['name']} is gone through {source['passes']:.1f} times in an epoch to have its weight, "
                f"and more than {_MANY_PASSES} teach little: lower its weight, or add rows"
            )
    for key, what in _DROPPED.items():
        if facts[key]:
            step.note(f"{facts[key]:,} {what}")
    step.detail = f"{rows}{', already in the store' if found else ''}"


_DROPPED = {
    "num_truncated": "rows were longer than data.sequence_length and lost their end: raise it to keep them whole, "
    "or set data.long_documents to split",
    "num_split": "rows were longer than data.sequence_length and were split",
    "num_unsupervised_dropped": "of the pieces were dropped, as nothing in them is supervised",
    "num_duplicates_dropped": "rows were dropped, as they are the same as earlier ones",
    "num_leaked_dropped": "training rows were dropped, as they are held out too",
    "num_malformed": "records were left out, as they cannot be used; the statistics name the first of them",
}
"""What is told of facts that are not 0."""


def _size_of_samples(facts: dict[str, Any]) -> str:
    if facts["packing"] == "none":
        mean = facts["num_train_tokens"] / facts["num_train_samples"]
        return f"of one document each, {mean:,.0f} tokens on average"
    return f"of {facts['sequence_length']:,} tokens, {facts['fill']:.1%} full"
