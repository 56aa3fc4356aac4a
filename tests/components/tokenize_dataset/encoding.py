"""What tests of supervision share: rows in, and out what the model is taught to say."""

import numpy as np

from components.tokenize_dataset.documents import Encoder
from components.tokenize_dataset.shapes import detect
from training.config import DataConfig
from training.data import IGNORE
from training.sources.rows import Row


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def chat(*contents, system=None):
    """A row: user and assistant in turn."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages += [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]
    return {"messages": messages}


def as_rows(rows):
    return [Row(f"t.jsonl line {number}", row) for number, row in enumerate(rows, start=1)]


def encode(rows, tokenizer, shape_rows=None, **data):
    """Encodings of rows, whose shape is found from `shape_rows` (unset: from all)."""
    return encoder_for(shape_rows or rows, tokenizer, **data).encode(as_rows(rows))


def encoder_for(rows, tokenizer, **data):
    data = DataConfig(train="t.jsonl", **{"sequence_length": 1024, **data})
    return Encoder(data, detect(as_rows(rows), data.train_sources[0], "t.jsonl"), tokenizer)


def encode_one(row, tokenizer, **data):
    (encoded,) = encode([row], tokenizer, **data)
    (document,) = encoded.documents
    return document, encoded


def marked(document, tokenizer):
    """The document's tokens in the vocabulary's own writing, those that are supervised in brackets."""
    supervised = np.concatenate([[False], document.labels[:-1] != IGNORE])
    pieces = tokenizer.convert_ids_to_tokens(document.input_ids.tolist())
    return " ".join(f"[{piece}]" if on else piece for piece, on in zip(pieces, supervised, strict=True))


def targets(document, tokenizer):
    """What the model is taught to say: runs of supervised tokens, decoded."""
    runs, current = [], []
    for label in [*document.labels, IGNORE]:
        if label != IGNORE:
            current.append(int(label))
        elif current:
            runs.append(tokenizer.decode(current))
            current = []
    return runs


def assert_shifted(document):
    ids, labels = document
    assert ids.dtype == labels.dtype == np.int32
    assert len(ids) == len(labels)
    assert labels[-1] == IGNORE
    supervised = labels != IGNORE
    assert (labels[supervised] == np.roll(ids, -1)[supervised]).all()
