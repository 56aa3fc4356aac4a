"""Arguments and options that several commands have."""

from typing import Annotated

import typer

RecipeArgument = Annotated[
    str, typer.Argument(help="Name of a recipe that ships with Shardline, or path of a YAML file.")
]

OverrideOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="SECTION.FIELD=VALUE", help="Change a setting; may be given several times."
    ),
]
