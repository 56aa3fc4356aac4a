"""`shardline preview`: what the model will learn from one row, token by token."""

from typing import Annotated

import typer
from rich.console import Console

from pipelines.options import OverrideOption, RecipeArgument
from training.resolve import find_recipe, read_recipe, resolve


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
    from components.tokenize_dataset.preview import preview_row
    from pipelines.preview_text import print_facts, print_ids, print_legend, print_text

    shown = preview_row(config, source, row)
    console = Console(highlight=False)
    in_colour = console.is_terminal and not console.no_color and not plain
    print_facts(console, shown.facts)
    for number, pieces in enumerate(shown.documents, start=1):
        title = f"[bold]Document {number} of {shown.num_documents:,}[/bold]"
        console.print(f"\n{title}" if shown.num_documents > 1 else "")
        (print_ids if ids else print_text)(console, pieces, in_colour)
    if shown.num_documents > len(shown.documents):
        console.print(f"\nand {shown.num_documents - len(shown.documents):,} more documents")
    if not ids:
        console.print()
        print_legend(console, in_colour)
