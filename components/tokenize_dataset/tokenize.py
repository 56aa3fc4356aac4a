"""From `data` to a published folder of packed samples."""

import json
import time
from pathlib import Path
from typing import Any

from components.step import Step
from components.tokenize_dataset.cut import long_documents
from components.tokenize_dataset.split import Split, used_columns
from training.config import DataConfig, ModelConfig
from training.data_source import JsonlFile, Source, open_heldout, open_train
from training.hub import quiet_libraries
from training.model_source import load_tokenizer, pin, tokenizer_key
from training.store import Store, about, fingerprint

_VERSION = 2
"""Raise it when the same rows and settings give other samples than before."""


def tokenize(step: Step) -> Path:
    """Publish the run's packed samples, unless they are in the store already.

    The folder holds `train.arrow` and `heldout.arrow` (see `write_samples`), and `prompts.jsonl` with a line for
    each held-out row that asks something: prompt (rendered, up to where the answer begins; it holds its special
    tokens), question and reference.

    Returns:
        `<root>/datasets/<key>`.

    Raises:
        UserError: The data or the tokenizer cannot be had, or a row cannot be used; names the row.
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
        # The manifest is written when the block ends, and by then the facts are known.
        facts: dict[str, Any] = {"source": data.train, "revision": train.revision}
        with store.publish("datasets", key, facts) as staging:
            facts.update(_write(staging, data, model, Split(data, train, heldout)))
        folder = store.path("datasets", key)
    step.folder.save_input("dataset", folder)
    _say(step, about(folder), found, time.monotonic() - started)
    return folder


def dataset_key(data: DataConfig, train: Source, heldout: JsonlFile | None, tokenizer: str) -> str:
    """Key of the published samples: all that they are made from, and nothing else.

    Args:
        data: The config.
        train: Rows to train on.
        heldout: Rows to evaluate on, if they have a file.
        tokenizer: Fingerprint of the tokenizer with its chat template.
    """
    return fingerprint(
        train=train.content,
        heldout=heldout.content if heldout is not None else data.heldout_fraction,
        format=data.format,
        columns=used_columns(data),
        sequence_length=data.sequence_length,
        long_documents=long_documents(data),
        packing=data.packing,
        max_train_rows=data.max_train_rows,
        tokenizer=tokenizer,
        version=_VERSION,
    )


def _write(staging: Path, data: DataConfig, model: ModelConfig, split: Split) -> dict[str, Any]:
    # Here, because they import torch and transformers, which data that is in the store does without.
    from components.tokenize_dataset.documents import Document, Encoder
    from components.tokenize_dataset.write import fingerprint_documents, write_samples

    tokenizer = load_tokenizer(model)
    encoder = Encoder(data, tokenizer)

    prompts: list[dict[str, str]] = []
    documents: dict[str, list[Document]] = {"heldout": [], "train": []}
    num_rows = {"heldout": 0, "train": 0}
    num_long = num_unsupervised = 0
    # Held out first: what it is has to be known before the training rows are read.
    for part, rows in (("heldout", split.heldout_rows()), ("train", split.train_rows())):
        for row in encoder.encode(rows):
            documents[part] += row.documents
            num_rows[part] += 1
            num_long += row.num_tokens > data.sequence_length
            num_unsupervised += row.num_unsupervised
            if part == "heldout" and row.prompt is not None:
                prompts.append(row.prompt)
    train, heldout = (
        write_samples(staging / f"{part}.arrow", documents[part], data.sequence_length, data.packing)
        for part in ("train", "heldout")
    )
    # In ASCII, because some readers take U+2028 for the end of a line.
    (staging / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in prompts))
    template = tokenizer.get_chat_template() if data.format == "chat" else None
    splits = long_documents(data) == "split"
    return {
        "format": data.format,
        "packing": data.packing,
        "num_train_rows": num_rows["train"],
        "num_heldout_rows": num_rows["heldout"],
        "num_train_documents": len(documents["train"]),
        "num_train_samples": train.num_samples,
        "num_train_tokens": train.num_tokens,
        "num_train_supervised": train.num_supervised,
        "num_heldout_samples": heldout.num_samples,
        "num_heldout_tokens": heldout.num_tokens,
        "num_heldout_supervised": heldout.num_supervised,
        # Samples of one document are padded to no more than the longest beside them, so this says nothing there.
        "fill": None if data.packing == "none" else train.num_tokens / (train.num_samples * data.sequence_length),
        "num_truncated": 0 if splits else num_long,
        "num_split": num_long if splits else 0,
        "num_unsupervised_dropped": num_unsupervised,
        "num_leaked_dropped": split.num_leaked_dropped,
        "sequence_length": data.sequence_length,
        "vocab_size": len(tokenizer),
        "heldout_fingerprint": fingerprint_documents(documents["heldout"]),
        "max_token_id": max(train.max_token_id, heldout.max_token_id),
        "eos_token": tokenizer.eos_token,
        "tokenizer_fingerprint": fingerprint(tokenizer=tokenizer.backend_tokenizer.to_str()),
        "template_fingerprint": None if template is None else fingerprint(template=template),
    }


def _say(step: Step, facts: dict[str, Any], found: bool, seconds: float) -> None:
    rows = f"{facts['num_train_rows']:,} rows → {facts['num_train_samples']:,} samples"
    supervised = facts["num_train_supervised"] / facts["num_train_tokens"]
    step.note(
        f"{'data already in the store: ' if found else ''}{rows} {_size_of_samples(facts)}, "
        f"{supervised:.0%} of tokens supervised; {facts['num_heldout_rows']:,} rows held out; "
        f"in {seconds:.1f} s".replace("%", " %")
    )
    if facts["num_truncated"]:
        step.note(
            f"{facts['num_truncated']:,} rows were longer than data.sequence_length and lost their end: raise it "
            "to keep them whole, or set data.long_documents to split"
        )
    if facts["num_split"]:
        step.note(f"{facts['num_split']:,} rows were longer than data.sequence_length and were split")
    if facts["num_unsupervised_dropped"]:
        step.note(
            f"{facts['num_unsupervised_dropped']:,} of the pieces were dropped, as nothing in them is supervised"
        )
    if facts["num_leaked_dropped"]:
        step.note(f"{facts['num_leaked_dropped']:,} training rows were dropped, as they are held out too")
    step.detail = f"{rows}{', already in the store' if found else ''}"


def _size_of_samples(facts: dict[str, Any]) -> str:
    if facts["packing"] == "none":
        mean = facts["num_train_tokens"] / facts["num_train_samples"]
        return f"of one document each, {mean:,.0f} tokens on average"
    return f"of {facts['sequence_length']:,} tokens, {facts['fill']:.1%} full"
