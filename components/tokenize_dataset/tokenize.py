"""From `data` to a published folder of packed samples."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from components.step import Step
from components.tokenize_dataset.split import Split, used_columns
from training.config import DataConfig, ModelConfig
from training.data_source import JsonlFile, Source, open_heldout, open_train
from training.hub import quiet_libraries
from training.model_source import load_tokenizer, pin, tokenizer_key
from training.store import Store, about, fingerprint

_PACKING = 1
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
        max_train_rows=data.max_train_rows,
        tokenizer=tokenizer,
        packing=_PACKING,
    )


def _write(staging: Path, data: DataConfig, model: ModelConfig, split: Split) -> dict[str, Any]:
    # Here, because they import torch and transformers, which data that is in the store does without.
    from components.tokenize_dataset.documents import Document, Encoded, Encoder
    from components.tokenize_dataset.write import fingerprint_documents, write_samples

    tokenizer = load_tokenizer(model)
    encoder = Encoder(data, tokenizer)

    def gather(rows: Iterable[Encoded], prompts: list[dict[str, str]] | None) -> tuple[list[Document], int, int]:
        documents: list[Document] = []
        num_rows = num_truncated = 0
        for row in rows:
            documents += row.documents
            num_rows += 1
            num_truncated += row.truncated
            if prompts is not None and row.prompt is not None:
                prompts.append(row.prompt)
        return documents, num_rows, num_truncated

    prompts: list[dict[str, str]] = []
    heldout, num_heldout_rows, num_heldout_truncated = gather(encoder.encode(split.heldout_rows()), prompts)
    train, num_train_rows, num_train_truncated = gather(encoder.encode(split.train_rows()), None)
    train_counts = write_samples(staging / "train.arrow", train, data.sequence_length)
    heldout_counts = write_samples(staging / "heldout.arrow", heldout, data.sequence_length)
    # In ASCII, because some readers take U+2028 for the end of a line.
    (staging / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in prompts))
    template = tokenizer.get_chat_template() if data.format == "chat" else None
    return {
        "format": data.format,
        "num_train_rows": num_train_rows,
        "num_heldout_rows": num_heldout_rows,
        "num_train_samples": train_counts.num_samples,
        "num_train_tokens": train_counts.num_tokens,
        "num_train_supervised": train_counts.num_supervised,
        "num_heldout_samples": heldout_counts.num_samples,
        "num_heldout_tokens": heldout_counts.num_tokens,
        "num_heldout_supervised": heldout_counts.num_supervised,
        "fill": train_counts.num_tokens / (train_counts.num_samples * data.sequence_length),
        "num_truncated": num_train_truncated + num_heldout_truncated,
        "num_leaked_dropped": split.num_leaked_dropped,
        "sequence_length": data.sequence_length,
        "vocab_size": len(tokenizer),
        "heldout_fingerprint": fingerprint_documents(heldout),
        "max_token_id": max(train_counts.max_token_id, heldout_counts.max_token_id),
        "eos_token": tokenizer.eos_token,
        "tokenizer_fingerprint": fingerprint(tokenizer=tokenizer.backend_tokenizer.to_str()),
        "template_fingerprint": None if template is None else fingerprint(template=template),
    }


def _say(step: Step, facts: dict[str, Any], found: bool, seconds: float) -> None:
    rows = f"{facts['num_train_rows']:,} rows → {facts['num_train_samples']:,} samples"
    supervised = facts["num_train_supervised"] / facts["num_train_tokens"]
    step.note(
        f"{'data already in the store: ' if found else ''}{rows} of {facts['sequence_length']:,} tokens, "
        f"{facts['fill']:.1%} full, {supervised:.0%} of tokens supervised; "
        f"{facts['num_heldout_rows']:,} rows held out; in {seconds:.1f} s".replace("%", " %")
    )
    if facts["num_truncated"]:
        step.note(
            f"{facts['num_truncated']:,} rows were longer than data.sequence_length and lost their end: raise it "
            "to keep them whole"
        )
    if facts["num_leaked_dropped"]:
        step.note(f"{facts['num_leaked_dropped']:,} training rows were dropped, as they are held out too")
    step.detail = f"{rows}{', already in the store' if found else ''}"
