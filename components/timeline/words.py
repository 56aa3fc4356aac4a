"""What the page and the command say of a run's faults, in one line each."""

import time

from training.events import Action
from training.ledger import Trouble
from training.ledger.sentence import show_seconds

ACTIONS: dict[Action | str, str] = {
    "restart_in_place": "restarted in place",
    "restart_elsewhere": "restarted elsewhere",
    "shrink": "went on with fewer nodes",
    "stop": "stopped",
}


def trouble_line(trouble: Trouble) -> str:
    """An incident, its decision and its cost."""
    place = [f"rank {trouble.rank}"] if trouble.rank is not None else []
    place += [f"on {trouble.host}"] if trouble.host else []
    step = f" after step {trouble.step:,}" if trouble.step is not None else ""
    said = [f"{trouble.what.replace('_', ' ')}{step}{', ' if place else ''}{' '.join(place)}"]
    if trouble.action:
        said.append(f"{ACTIONS.get(trouble.action, trouble.action)}: {trouble.reason}")
    if trouble.excluded:
        said.append(f"without {', '.join(trouble.excluded)}")
    if trouble.steps_lost:
        said.append(f"{steps(trouble.steps_lost)} lost")
    if trouble.recovery_s is not None:
        said.append(f"stepping again after {show_seconds(trouble.recovery_s)}")
    return "; ".join(said)


def steps(number: int) -> str:
    """So many steps."""
    return f"{number:,} step{'' if number == 1 else 's'}"


def clock(seconds: float) -> str:
    """A time of day with its date, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
