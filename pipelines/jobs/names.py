"""What to say when a run that was named is not there."""

import difflib
from collections.abc import Iterable

_SHOWN = 10
"""Runs that a message names."""


def suggest(run: str, runs: Iterable[str], where: str = "namespace") -> str:
    """What to name instead of a run that is not there.

    Args:
        run: What was named.
        runs: Those that are there.
        where: What they were looked for in.
    """
    known = sorted(runs)
    if not known:
        return f"there are no runs of Shardline there at all, so check the {where}"
    near = difflib.get_close_matches(run, known, n=1)
    first = f"did you mean '{near[0]}'? " if near else ""
    shown = ", ".join(known[-_SHOWN:])
    return f"{first}the runs there are {shown}{' and more' if len(known) > _SHOWN else ''}"
