"""Rows, and what reads them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from training.errors import UserError


class Row(NamedTuple):
    """A row, and where it stands for people to find it."""

    origin: str
    """As in `train.jsonl line 3`."""
    values: dict[str, Any]


class Malformed(NamedTuple):
    """A record that cannot be used."""

    origin: str
    """As of a row."""
    problem: str
    """What is wrong and what to do, as the rest of a sentence that begins with the origin."""


class Block(Protocol):
    """A part of a source, small enough to be held in memory. It pickles, and is parsed by whoever calls `rows`."""

    def rows(self) -> Iterator[Row | Malformed]:
        """The rows, in their order."""
        ...


class Source(Protocol):
    """Rows to train or to evaluate on."""

    @property
    def name(self) -> str:
        """For people: `DataSource.name`, or what the user wrote."""
        ...

    @property
    def content(self) -> str:
        """What pins the content: two sources of equal content give the same rows."""
        ...

    @property
    def revision(self) -> str:
        """The same for people."""
        ...

    def blocks(self) -> Iterator[Block]:
        """The parts, in their order, read one at a time.

        Raises:
            UserError: The source cannot be read at all.
        """
        ...


def rows_of(source: Source) -> Iterator[Row | Malformed]:
    """All rows of a source, in their order, parsed here.

    Raises:
        UserError: The source cannot be read at all.
    """
    for block in source.blocks():
        yield from block.rows()


def check_columns(where: str, columns: Sequence[str]) -> None:
    """Check that a row can be told by its columns.

    Args:
        where: What names the columns, as a sentence begins.
        columns: Their names.

    Raises:
        UserError: Two have the same name.
    """
    twice = next((name for name, number in Counter(columns).items() if number > 1), None)
    if twice is not None:
        raise UserError(f"{where} names the column '{twice}' twice: give each column its own name")
