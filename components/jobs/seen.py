"""What was seen of an attempt by the time that nobody need follow it any longer."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from components.jobs.deadlines import Overdue
from training.events import RanksEnded
from training.guard.place import Place


@dataclass(frozen=True)
class Seen:
    """How an attempt stands.

    Attributes:
        has_ended: Whether its job has ended.
        overdue: The limit that it has passed.
        told: What nodes say of the end of their ranks, by node.
        places: The nodes that had begun, by their number.
        lost: Those of them of which nothing is heard.
        fatal: Machines that are not to be used any further → why.
        slow: The machine at the end of a link that is slow → what was measured.
        step: The last step that was done.
        on_nodes: Steps done in the newest checkpoint on the nodes' own disks; 0 if there is none.
    """

    has_ended: bool = False
    overdue: Overdue | None = None
    told: Mapping[int, RanksEnded] = field(default_factory=dict)
    places: Mapping[int, Place] = field(default_factory=dict)
    lost: Mapping[int, Place] = field(default_factory=dict)
    fatal: Mapping[str, str] = field(default_factory=dict)
    slow: Mapping[str, str] = field(default_factory=dict)
    step: int | None = None
    on_nodes: int = 0
