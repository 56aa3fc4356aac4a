"""Facts of a report with labels and figures for people: of the data set, and of the training's speed."""

from collections.abc import Mapping
from typing import Any

from components.evaluate import formats
from training.history import History


def dataset_facts(about: Mapping[str, Any]) -> dict[str, str]:
    """What a data set's manifest records, with labels and figures for people; unknown entries as they are."""
    # In pairs, which stand side by side where there is room.
    known = {
        "num_train_rows": "Rows to train on",
        "num_heldout_rows": "Rows held out",
        "num_train_samples": "Samples to train on",
        "num_heldout_samples": "Samples held out",
        "num_train_tokens": "Tokens to train on",
        "num_heldout_tokens": "Tokens held out",
        "num_train_supervised": "Supervised to train on",
        "num_heldout_supervised": "Supervised held out",
        "sequence_length": "Longest sample allowed",
        "fill": "Packed samples filled to",
        "num_train_documents": "Documents to train on",
        "num_truncated": "Rows cut at the end",
        "num_split": "Rows split",
        "num_unsupervised_dropped": "Pieces dropped, as unsupervised",
        "num_leaked_dropped": "Rows dropped, as held out too",
        "num_duplicates_dropped": "Rows dropped, as others are the same",
        "num_malformed": "Records left out, as malformed",
        "vocab_size": "Tokens of the vocabulary",
        "max_token_id": "Highest token that occurs",
        "eos_token": "End-of-text token",
        "heldout_fingerprint": "Fingerprint of what is held out",
        "tokenizer_fingerprint": "Fingerprint of the tokenizer",
        "template_fingerprint": "Fingerprint of the chat template",
    }
    facts = {label: _as_fact(key, about[key]) for key, label in known.items() if about.get(key) is not None}
    for part in ("train", "heldout"):
        tokens, supervised = about.get(f"num_{part}_tokens"), about.get(f"num_{part}_supervised")
        if tokens and supervised is not None:
            facts[known[f"num_{part}_supervised"]] += f" ({formats.as_percent(supervised / tokens)})"
    # Source and revision are the lineage's; what is told of each source stands on the page of the statistics.
    others = {
        key: value
        for key, value in about.items()
        if key not in {*known, "source", "revision"} and not isinstance(value, list | dict)
    }
    return facts | {
        key.replace("_", " ").capitalize(): _as_fact(key, value)
        for key, value in others.items()
        if value is not None
    }


def speed_facts(history: History) -> dict[str, str]:
    """How fast the training was and how well it used the devices, as far as that is known."""
    if not history.steps:
        return {}
    last = history.steps[-1]
    facts = {
        "Devices": (last.num_devices, formats.as_count),
        "Tokens per second and device": (history.tokens_per_s_per_device, formats.as_count),
        "Supervised tokens per second": (history.supervised_tokens_per_s, formats.as_count),
        "Computed positions filled": (history.fill, formats.as_percent),
        "Model TFLOP/s per device": (history.tflops_per_device, formats.as_tflops),
        "Published peak, TFLOP/s": (last.peak_tflops, formats.as_tflops),
        "Model FLOPs utilisation": (history.mfu, formats.as_percent),
    }
    return {label: as_text(value) for label, (value, as_text) in facts.items() if value is not None}


def _as_fact(key: str, value: Any) -> str:
    if key == "fill":
        return formats.as_percent(value)
    if key == "sequence_length":
        return f"{formats.as_count(value)} tokens"
    if isinstance(value, int) and not isinstance(value, bool):
        return formats.as_count(value)
    return str(value)
