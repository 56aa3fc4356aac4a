"""The commands about the registry: versions and rollback."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.options import OverrideOption
from training.config import RegistryConfig
from training.errors import UserError

if TYPE_CHECKING:
    from components.tracking.connection import Connection

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="Name of the registered model. Default: the recipe's, or the only one that there is.",
        show_default=False,
    ),
]
RecipeOption = Annotated[
    str,
    typer.Option("--recipe", help="Recipe whose section `registry` says where and what.", show_default=False),
]
UriOption = Annotated[
    str,
    typer.Option(
        help="MLflow server or database. Default: the recipe's, or SQLite inside the store.",
        envvar="MLFLOW_TRACKING_URI",
        show_envvar=True,
        show_default=False,
    ),
]
StoreOption = Annotated[
    Path, typer.Option(help="Store whose own database is meant.", envvar="SHARDLINE_STORE", show_envvar=True)
]


def versions(
    model: ModelArgument = "",
    recipe: RecipeOption = "",
    overrides: OverrideOption = None,
    tracking_uri: UriOption = "",
    store: StoreOption = Path(".shardline"),
) -> None:
    """List the versions of a registered model: aliases, run, held-out loss before and after, gate, date.

    Examples:

        shardline versions

        shardline versions my-model --tracking-uri http://mlflow.example.com
    """
    from pipelines.registry.table import show_versions

    with _registry(recipe, overrides, tracking_uri, store) as (connection, settings):
        name = _name(connection, model or settings.model_name, is_given=bool(model or recipe))
        show_versions(connection, name, settings.alias)


def rollback(
    model: ModelArgument = "",
    to: Annotated[
        str, typer.Option(help="Version that shall hold the alias. Default: the one before.", show_default=False)
    ] = "",
    reason: Annotated[str, typer.Option(help="Why; it is kept with both versions.", show_default=False)] = "",
    alias: Annotated[
        str, typer.Option(help="Alias that moves. Default: the recipe's, or champion.", show_default=False)
    ] = "",
    recipe: RecipeOption = "",
    overrides: OverrideOption = None,
    tracking_uri: UriOption = "",
    store: StoreOption = Path(".shardline"),
) -> None:
    """Give the alias back to the version that held it before, or to the one that --to names.

    The version's model has to be there still. Who did it, when and why is kept as tags of both versions.

    Examples:

        shardline rollback --reason "answers in the wrong language"

        shardline rollback my-model --to 7 --tracking-uri http://mlflow.example.com
    """
    from components.tracking.rollback import roll_back

    with _registry(recipe, overrides, tracking_uri, store) as (connection, settings):
        name = _name(connection, model or settings.model_name, is_given=bool(model or recipe))
        done = roll_back(connection, name, alias or settings.alias, to or None, reason)
    before = "no version" if done.before is None else f"version {done.before}"
    print(f"{done.name}: {done.alias} moved from {before} to version {done.after}")


@contextmanager
def _registry(
    recipe: str, overrides: list[str] | None, tracking_uri: str, store: Path
) -> Iterator[tuple["Connection", RegistryConfig]]:
    from components.tracking.connection import connect, has_registry
    from training.credentials import has_login

    settings = _settings(recipe, overrides)
    uri = tracking_uri or settings.tracking_uri
    root = store.expanduser().absolute()
    if uri is not None and has_login(uri):
        raise UserError(
            "the tracking URI holds a user or password: leave them out of it, and set MLFLOW_TRACKING_USERNAME "
            "and MLFLOW_TRACKING_PASSWORD in the environment"
        )
    if not has_registry(uri, root):
        raise UserError(
            f"nothing was ever registered in the store {root}: give the store with --store, or the address of an "
            "MLflow server with --tracking-uri"
        )
    with connect(uri, root, lambda line: print(line, file=sys.stderr)) as connection:
        yield connection, settings


def _settings(recipe: str, overrides: list[str] | None) -> RegistryConfig:
    from training.resolve import find_recipe, read_recipe, resolve

    if not recipe:
        if overrides:
            raise UserError("--set changes a setting of a recipe: name that with --recipe")
        return RegistryConfig()
    return resolve(read_recipe(find_recipe(recipe)), overrides or []).registry


def _name(connection: "Connection", name: str, *, is_given: bool) -> str:
    """The registered model that is meant: what is named, or the only one."""
    found: list[Any] = list(connection.client.search_registered_models(max_results=1000))
    names = sorted(model.name for model in found)
    if not is_given and len(names) == 1:
        return str(names[0])
    if name not in names:
        there = f"registered are {', '.join(names[:20])}" if names else "nothing is registered there"
        raise UserError(f"there is no registered model '{name}' at {connection.uri}: {there}")
    return name
