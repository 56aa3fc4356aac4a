"""The versions of a registered model as a table for people, and as lines where there is no terminal."""

import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from components.tracking.connection import Connection

_COLUMNS = ("version", "aliases", "run", "loss before", "loss after", "gate", "date")
_NUMBERS = {"version", "loss before", "loss after"}


def show_versions(connection: Connection, name: str, alias: str) -> None:
    """Print the versions, newest first; without a terminal as lines whose fields tabs part.

    Args:
        connection: To MLflow.
        name: Name of the registered model.
        alias: The alias whose holder stands out.
    """
    rows = list(_rows(connection.client, name))
    if not sys.stdout.isatty():
        for row in (_COLUMNS, *rows):
            print("\t".join(row))
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in _NUMBERS else "left", no_wrap=column != "run")
    for row in rows:
        holds = alias in row[1].split(", ")
        table.add_row(*map(Text, row), style="bold green" if holds else "")
    Console().print(table)


def _rows(client: Any, name: str) -> Iterator[tuple[str, ...]]:
    held: dict[str, list[str]] = {}
    for alias, version in client.get_registered_model(name).aliases.items():
        held.setdefault(str(version), []).append(alias)
    found = client.search_model_versions(f"name = '{_quoted(name)}'")
    for version in sorted(found, key=lambda each: int(each.version), reverse=True):
        tags = version.tags
        yield (
            str(version.version),
            ", ".join(sorted(held.get(str(version.version), []))) or "-",
            tags.get("shardline.run", "-"),
            _loss(tags.get("base_loss")),
            _loss(tags.get("heldout_loss")),
            tags.get("shardline.gate", "-"),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(version.creation_timestamp / 1000)),
        )


def _quoted(name: str) -> str:
    return name.replace("'", "\\'")


def _loss(text: str | None) -> str:
    try:
        return f"{float(text or ''):.4g}"
    except ValueError:
        return "-"
