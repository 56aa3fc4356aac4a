"""The table of outcomes: for the terminal, and as a page."""

import datetime
import os
from collections.abc import Mapping
from pathlib import Path

from tests.faults.judge import Outcome
from tests.faults.rows import Row
from tests.faults.world import DEADLINE_S, EVERY

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"

_BEGIN = "<!-- Written by `make faults`; what stands below is not edited by hand. -->"

_SHORT = "What falls short:"

_AGAIN = "Measured again: row "

_HEAD = (
    "",
    "#",
    "fault",
    "lost",
    "bitwise",
    "class",
    "recovery s",
    "torchrun s",
    "ratio",
    "beside the common rules",
)

_WIDTHS = (7, 5, 46, 5, 8, 14, 11, 22, 6, 0)


def line(row: Row, outcome: Outcome | str) -> str:
    """A row for the terminal, with what falls short below it."""
    problems = [] if isinstance(outcome, str) else outcome.problems
    return "\n".join([_aligned(_cells(row, outcome)), *(f"        {problem}" for problem in problems)])


def head() -> str:
    """Above the rows."""
    return _aligned(_HEAD)


def write_page(
    rows: Mapping[str, tuple[Row, Outcome | str]], cold_s: Mapping[str, float], page: Path = PAGE
) -> None:
    """Write the table below the page's own beginning."""
    beginning = page.read_text().partition(_BEGIN)[0].rstrip()
    cores = len(os.sched_getaffinity(0))
    cold = ", ".join(f"{seconds:.1f} s on {size}" for size, seconds in cold_s.items())
    facts = (
        f"Measured on {datetime.date.today():%Y-%m-%d} on {cores} CPU cores, with D = {DEADLINE_S:g} s, "
        f"K = {EVERY} steps, and C = {cold or 'not measured'}."
    )
    table = [_markdown(_HEAD), "|" + "---|" * len(_HEAD)]
    for row, outcome in rows.values():
        table.append(_markdown(_cells(row, outcome)))
    short = [line for row, outcome in rows.values() for line in _shortcomings(row, outcome)]
    what_is_short = ["", _SHORT, "", *short] if short else []
    page.write_text("\n".join([beginning, "", _BEGIN, "", facts, "", *table, *what_is_short, ""]))


def write_again(rows: Mapping[str, tuple[Row, Outcome | str]], page: Path = PAGE) -> None:
    """Put rows that were measured by themselves in the place of those that a page has.

    Raises:
        SystemExit: The page has no such row.
    """
    lines = page.read_text().splitlines()
    end = max((number for number, line in enumerate(lines) if line.startswith("|")), default=-1) + 1
    table, below = lines[:end], [line for line in lines[end:] if line.startswith(("- ", _AGAIN))]
    for key, (row, outcome) in rows.items():
        found = [number for number, line in enumerate(table) if line.split("|")[2:3] == [f" {key} "]]
        if not found:
            raise SystemExit(f"{page} has no row {key}: run all of them first, with `make faults`")
        table[found[0]] = _markdown(_cells(row, outcome))
        note = f"{_AGAIN}{key} by itself on {datetime.date.today():%Y-%m-%d}."
        below = [line for line in below if not line.startswith((f"- {key}: ", f"{_AGAIN}{key} "))]
        below += [*_shortcomings(row, outcome), note]
    short = [line for line in below if line.startswith("- ")]
    notes = [part for line in below if line.startswith(_AGAIN) for part in ("", line)]
    page.write_text("\n".join([*table, *(["", _SHORT, "", *short] if short else []), *notes, ""]))


def _shortcomings(row: Row, outcome: Outcome | str) -> list[str]:
    problems = [] if isinstance(outcome, str) else outcome.problems
    return [f"- {row.key}: {problem.splitlines()[0]}" for problem in problems]


def _cells(row: Row, outcome: Outcome | str) -> tuple[str, ...]:
    if isinstance(outcome, str):
        return ("skipped", row.key, row.fault, "", "", "", "", "", "", outcome)
    theirs = outcome.torchrun_s
    return (
        "short" if outcome.problems else "ok",
        row.key,
        row.fault,
        "-" if outcome.lost is None else str(outcome.lost),
        {True: "yes", False: "no", None: "-"}[outcome.bitwise],
        outcome.what,
        "-" if outcome.recovery_s is None else f"{outcome.recovery_s:.1f}",
        f"{theirs:.1f}" if isinstance(theirs, float) else theirs or "-",
        "-" if outcome.ratio is None else f"{outcome.ratio:.2f}",
        row.rule,
    )


def _aligned(cells: tuple[str, ...]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _markdown(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
