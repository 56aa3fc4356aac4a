"""What becomes of one row, for people: what it was found to be, and its documents token by token."""

import itertools
from typing import Any, NamedTuple

import numpy as np

from components.tokenize_dataset.documents import Document, Encoded, Encoder, is_rendered
from components.tokenize_dataset.read import find_shape
from components.tokenize_dataset.shapes import Shape
from training.config import DataConfig, DataSource, RunConfig
from training.data import IGNORE
from training.errors import UserError
from training.hub import quiet_libraries
from training.model_source import load_tokenizer
from training.sources.open import open_heldout, open_train
from training.sources.rows import Malformed, Row, Source, rows_of

_MOST_DOCUMENTS = 4
"""Documents of a row that are shown."""


class Piece(NamedTuple):
    """A token, or the few that spell one character.

    Attributes:
        ids: Its ids.
        text: What it adds to the text.
        supervised: Whether the model learns to say it.
    """

    ids: list[int]
    text: str
    supervised: bool


class Preview(NamedTuple):
    """A row as the model is given it.

    Attributes:
        facts: What is known of it, each with a label.
        documents: The first of its documents, as pieces.
        num_documents: How many there are.
    """

    facts: dict[str, str]
    documents: list[list[Piece]]
    num_documents: int


def preview_row(config: RunConfig, source_name: str, number: int) -> Preview:
    """Encode one row of a run's data, without a store.

    Args:
        config: The run.
        source_name: Of one of the sources in `data.train` or `data.heldout`; empty: the first.
        number: Which of its rows, from 1.

    Raises:
        UserError: There is no such source or row, or it or the tokenizer cannot be used.
    """
    quiet_libraries()
    data = config.data
    source, settings = _choose(data, source_name)
    row = _row(source, number)
    shape = find_shape(source, settings)
    tokenizer = load_tokenizer(config.model)
    (encoded,) = Encoder(data, shape, tokenizer).encode([row])
    if isinstance(encoded, Malformed):
        raise UserError(f"{encoded.origin} {encoded.problem}")
    num_kept = sum(len(document.input_ids) for document in encoded.documents)
    num_learned = sum(int((document.labels != IGNORE).sum()) for document in encoded.documents)
    facts = {
        "Source": source.name,
        "Shape": shape.sentence(),
        "Row": f"{number} ({row.origin})",
        "Template": _template(data, shape, tokenizer, encoded),
        "Tokens": f"{num_kept:,}, of which {num_learned:,} are learned",
        "Cut": _cut(data, num_kept, encoded),
        "Prompt": "at evaluation, what comes before the last answer" if encoded.prompt else "none at evaluation",
    }
    shown = [pieces_of(document, tokenizer) for document in encoded.documents[:_MOST_DOCUMENTS]]
    return Preview(facts, shown, len(encoded.documents))


def pieces_of(document: Document, tokenizer: Any) -> list[Piece]:
    """A document's tokens with what each of them says."""
    # A label stands one position before the token that it names.
    supervised = np.concatenate([[False], document.labels[:-1] != IGNORE]).tolist()
    pieces: list[Piece] = []
    group: list[int] = []
    before: list[int] = []
    for position, token in enumerate(document.input_ids.tolist()):
        group.append(token)
        text = _added(before, group, tokenizer)
        goes_on = supervised[position + 1 : position + 2] == [supervised[position]]
        # A part of a character decodes to a replacement; a character has no more than four parts.
        if text.endswith("\ufffd") and len(group) < 4 and goes_on:
            continue
        pieces.append(Piece(group, text, supervised[position]))
        before, group = group, []
    return pieces


def _choose(data: DataConfig, name: str) -> tuple[Source, DataSource]:
    settings = (*data.train_sources, *data.heldout_sources)
    if name and not any(name in (each.name, each.source) for each in settings):
        names = [each.name or each.source for each in settings]
        raise UserError(f"--source is '{name}', but the sources are {', '.join(names)}: choose one of these")
    opened = itertools.chain(open_train(data), open_heldout(data))
    return next(
        (source, each)
        for source, each in zip(opened, settings, strict=False)
        if not name or name in (each.name, each.source)
    )


def _row(source: Source, number: int) -> Row:
    count = 0
    for count, record in enumerate(rows_of(source), start=1):
        if count == number:
            if isinstance(record, Malformed):
                raise UserError(f"{record.origin} {record.problem}")
            return record
    raise UserError(
        f"--row is {number}, but {source.name} has {count:,} rows: choose one of these, or another source with "
        "--source"
    )


def _template(data: DataConfig, shape: Shape, tokenizer: Any, encoded: Encoded) -> str:
    if shape.format == "instruction" and data.prompt_template is not None:
        return f"data.prompt_template, {data.prompt_template!r}"
    if not is_rendered(data, shape, tokenizer):
        return "none"
    if encoded.num_texts == 1:
        return "the model's chat template"
    return (
        f"the model's chat template, which rewrites earlier turns: {encoded.num_texts} texts teach one or more "
        "answers each, as the model will be asked for them"
    )


def _cut(data: DataConfig, num_kept: int, encoded: Encoded) -> str:
    if not encoded.num_long:
        return f"nothing (data.sequence_length is {data.sequence_length:,})"
    longer = f"longer than data.sequence_length {data.sequence_length:,}"
    num_pieces = len(encoded.documents) + encoded.num_unsupervised
    if num_pieces == encoded.num_texts:
        return f"{longer}: {encoded.num_tokens - num_kept:,} of {encoded.num_tokens:,} tokens, at the end"
    split = f"{longer}, so split into {num_pieces:,} documents"
    if not encoded.num_unsupervised:
        return split
    return f"{split}; {encoded.num_unsupervised:,} of them are left out, as nothing in them is learned"


def _added(before: list[int], group: list[int], tokenizer: Any) -> str:
    # After the tokens before them, as some decoders drop a space at the beginning of a text.
    start = len(_decoded(before, tokenizer))
    return _decoded(before + group, tokenizer)[start:]


def _decoded(ids: list[int], tokenizer: Any) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text
