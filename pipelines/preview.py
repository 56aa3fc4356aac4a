"""`shardline preview`: what the model will learn from one row, token by token."""

import itertools
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pipelines.options import OverrideOption, RecipeArgument
from training.config import DataConfig, DataSource, RunConfig
from training.errors import UserError
from training.resolve import find_recipe, read_recipe, resolve
from training.sources.rows import Malformed, Row, Source, rows_of

if TYPE_CHECKING:
    from components.tokenize_dataset.documents import Encoded
    from components.tokenize_dataset.shapes import Shape

_MOST_DOCUMENTS = 4
"""Documents of a row that are shown."""


def preview(
    recipe: RecipeArgument = "quickstart",
    overrides: OverrideOption = None,
    row: Annotated[int, typer.Option(min=1, help="Which row of the source, counted from 1.")] = 1,
    source: Annotated[
        str, typer.Option(help="Name of one of the sources in data.train or data.heldout. Default: the first.")
    ] = "",
    ids: Annotated[bool, typer.Option("--ids", help="List the tokens with their ids instead.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Mark what is learned with brackets instead of colour, as in a pipe.")
    ] = False,
) -> None:
    """Show what the model will learn from one row of the data, token by token.

    Says which shape the rows were found to have, and in which columns; shows the row as the model reads it, with
    what it learns to say in colour, and says what is cut. No store is needed.

    Examples:

        shardline preview quickstart --row 3

        shardline preview my-recipe.yaml -s data.sequence_length=2048 --source forum --ids
    """
    config = resolve(read_recipe(find_recipe(recipe)), overrides or [])
    # Here, because they take seconds to import, which other commands need not wait for.
    from components.tokenize_dataset.preview import pieces_of
    from pipelines.preview_text import print_facts, print_ids, print_legend, print_text

    opened, settings = _choose(config.data, source)
    chosen, shape, encoded, tokenizer = _encode(config, opened, settings, row)
    console = Console(highlight=False)
    in_colour = console.is_terminal and not console.no_color and not plain
    print_facts(console, _facts(config.data, opened.name, shape, chosen, row, tokenizer, encoded))
    for number, document in enumerate(encoded.documents[:_MOST_DOCUMENTS], start=1):
        many = len(encoded.documents) > 1
        console.print(f"\n[bold]Document {number} of {len(encoded.documents)}[/bold]" if many else "")
        (print_ids if ids else print_text)(console, pieces_of(document, tokenizer), in_colour)
    if (more := len(encoded.documents) - _MOST_DOCUMENTS) > 0:
        console.print(f"\nand {more:,} more documents")
    if not ids:
        console.print()
        print_legend(console, in_colour)


def _choose(data: DataConfig, name: str) -> tuple[Source, DataSource]:
    """The source of a name, opened, with its settings."""
    from training.sources.open import open_heldout, open_train

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


def _encode(
    config: RunConfig, source: Source, settings: DataSource, number: int
) -> "tuple[Row, Shape, Encoded, object]":
    from components.tokenize_dataset.documents import Encoder
    from components.tokenize_dataset.read import find_shape
    from training.hub import quiet_libraries
    from training.model_source import load_tokenizer

    quiet_libraries()
    row = _row(source, number)
    shape = find_shape(source, settings)
    tokenizer = load_tokenizer(config.model)
    (encoded,) = Encoder(config.data, shape, tokenizer).encode([row])
    if isinstance(encoded, Malformed):
        raise UserError(f"{encoded.origin} {encoded.problem}")
    return row, shape, encoded, tokenizer


def _row(source: Source, number: int) -> Row:
    count = 0
    for count, record in enumerate(rows_of(source), start=1):
        if count == number:
            if isinstance(record, Malformed):
                raise UserError(f"{record.origin} {record.problem}")
            return record
    raise UserError(f"--row is {number}, but {source.name} has {count:,} rows: choose one of these")


def _facts(
    data: DataConfig, name: str, shape: "Shape", row: Row, number: int, tokenizer: object, encoded: "Encoded"
) -> dict[str, str]:
    from components.tokenize_dataset.documents import is_rendered

    num_kept = sum(len(document.input_ids) for document in encoded.documents)
    num_learned = sum(int((document.labels >= 0).sum()) for document in encoded.documents)
    return {
        "Source": name,
        "Shape": shape.sentence(),
        "Row": f"{number} ({row.origin})",
        "Template": _template(data, shape, is_rendered(data, shape, tokenizer), encoded),
        "Tokens": f"{num_kept:,}, of which {num_learned:,} are learned",
        "Cut": _cut(data, num_kept, encoded),
        "Prompt": "at evaluation, what comes before the last answer" if encoded.prompt else "none at evaluation",
    }


def _template(data: DataConfig, shape: "Shape", is_rendered: bool, encoded: "Encoded") -> str:
    if shape.format == "instruction" and data.prompt_template is not None:
        return f"data.prompt_template, {data.prompt_template!r}"
    if not is_rendered:
        return "none"
    if encoded.num_texts == 1:
        return "the model's chat template"
    return (
        f"the model's chat template, which rewrites earlier turns: {encoded.num_texts} texts teach one or more "
        "answers each, as the model will be asked for them"
    )


def _cut(data: DataConfig, num_kept: int, encoded: "Encoded") -> str:
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
