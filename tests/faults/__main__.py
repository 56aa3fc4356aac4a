"""`python -m tests.faults [FAULT ...]`: inject faults, print a row for each, write the page about all of them."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.faults import table
from tests.faults.judge import Outcome
from tests.faults.marks import own_mark, sweep
from tests.faults.matrix import ROWS, run_row
from tests.faults.suite import Suite


def main() -> int:
    """Run the rows that are asked for; 1 if one of them falls short."""
    listed = "\n".join(f"{key:>6}  {row.fault}" for key, row in ROWS.items())
    parser = argparse.ArgumentParser(
        "python -m tests.faults",
        description=__doc__,
        epilog=f"faults:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="which; default: all")
    parser.add_argument("--without-torchrun", action="store_true", help="do not put torchrun to the same faults")
    parser.add_argument(
        "--write", action="store_true", help="put the faults that are named into the page, for those that it has"
    )
    given = parser.parse_args()
    if unknown := [key for key in given.faults if key not in ROWS]:
        parser.error(f"there is no fault {', '.join(unknown)}: choose from {', '.join(ROWS)}")
    sweep()
    with tempfile.TemporaryDirectory(prefix=f"{own_mark()}-", ignore_cleanup_errors=True) as folder:
        suite = Suite(Path(folder), has_torchrun=not given.without_torchrun, tell=_tell)
        outcomes = {}
        print(table.head(), flush=True)
        for key in given.faults or ROWS:
            started = time.monotonic()
            row = ROWS[key]
            _tell(f"{key}: {row.fault}")
            outcomes[key] = row, run_row(row, suite)
            print(f"{table.line(*outcomes[key])}  ({time.monotonic() - started:.0f} s)", flush=True)
            if not given.faults:
                # After each, so that a suite that is ended leaves what it has found.
                table.write_page(outcomes, suite.cold_s())
    _tell("")
    if given.faults and given.write:
        table.write_again(outcomes)
    return int(any(isinstance(outcome, Outcome) and outcome.problems for _, outcome in outcomes.values()))


def _tell(what: str) -> None:
    """Show what goes on, in one line of the terminal that the next takes the place of."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
