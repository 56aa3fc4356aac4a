"""How often to save: where the time that saves take and the time that failures cost are least together.

Young's first-order optimum (A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974):
the square root of twice the mean time between failures times the cost of a save. Daly (A higher order estimate of
the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006) finds the same as long as a save costs far
less than the time between failures, as here.
"""

import math
from dataclasses import dataclass

FLEET_FAILURES_PER_NODE_DAY = 6.5e-3
"""Failures that stop a job, for one node and day: about 6.5 per 1000 node-days on fleets of GPUs (Kokolis et
al., Revisiting reliability in large-scale machine learning research clusters, 2024, arXiv:2410.21680)."""

MOST_LOST_S = 1800.0
"""The longest interval that is suggested: few users accept to lose more than 10 to 30 minutes."""

_WORTH_TELLING = 2.0
"""An interval that is off by less costs little: the sum of both costs is flat around its minimum."""

_SMALL_SHARE = 0.01
"""Saves that take less of the time than this are not worth a word, however often they are made."""


@dataclass(frozen=True)
class SaveCost:
    """What was seen of a run's saves.

    Attributes:
        held_up_s: For how long a save holds training up.
        write_s: For how long it is written; there is no use in saving more often.
        interval_s: Seconds between two saves.
        interval_steps: Steps between them.
    """

    held_up_s: float
    write_s: float
    interval_s: float
    interval_steps: int


def mean_time_between_failures_s(num_nodes: int, incidents: int = 0, observed_s: float = 0.0) -> float:
    """Expected seconds between two failures of a job: by the fleet's rate, and what the run itself has seen.

    Args:
        num_nodes: Of the job.
        incidents: The run's failures so far.
        observed_s: Seconds since the run began.
    """
    rate = num_nodes * FLEET_FAILURES_PER_NODE_DAY / 86_400
    if incidents and observed_s > 0:
        rate += incidents / observed_s
    return 1 / rate


def best_interval_s(cost_s: float, mtbf_s: float, *, write_s: float = 0.0) -> float:
    """The interval that loses least: √(2 · MTBF · cost), at most `MOST_LOST_S` and at least a save's writing.

    Args:
        cost_s: For how long a save holds training up.
        mtbf_s: Mean time between failures.
        write_s: For how long a save is written.
    """
    return max(min(math.sqrt(2 * mtbf_s * cost_s), MOST_LOST_S), write_s)


def suggestion(cost: SaveCost, mtbf_s: float) -> str | None:
    """A sentence that says which interval to set; None where the present one is near enough.

    It is near enough within a factor of two; and one that is shorter still, as long as saves hold training up for
    less than a hundredth of the time.
    """
    best = best_interval_s(cost.held_up_s, mtbf_s, write_s=cost.write_s)
    too_long = cost.interval_s > _WORTH_TELLING * best
    too_short = cost.interval_s < best / _WORTH_TELLING and cost.held_up_s > _SMALL_SHARE * cost.interval_s
    if not too_long and not too_short:
        return None
    steps = max(1, round(cost.interval_steps * best / cost.interval_s))
    return (
        f"a save takes {cost.write_s:.2g} s and holds training up for {cost.held_up_s:.2g} s; with a failure "
        f"every {_duration(mtbf_s)}, one every {_duration(best)} ({steps} steps) would lose least; now it "
        f"is every {_duration(cost.interval_s)} ({cost.interval_steps} steps): set checkpoint.every_steps to "
        f"{steps}, or checkpoint.every_s to {best:.0f}"
    )


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
