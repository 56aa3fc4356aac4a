"""The rows of the matrix, by what they strike."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.judge import Outcome
from tests.faults.suite import Suite


@dataclass(frozen=True)
class Row:
    """One fault.

    Attributes:
        key: Its number, as people name it.
        fault: What is injected.
        rule: What has to hold beside the common rules.
        run: Injects and judges it.
        needs: See `tests.faults.needs`.
    """

    key: str
    fault: str
    rule: str
    run: Callable[[Suite], Outcome]
    needs: tuple[str, ...] = ("namespaces",)
