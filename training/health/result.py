"""What a check comes to."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from training.errors import EXIT_NODE_SUSPECT
from training.guard.place import host_name

Status = Literal["ok", "warning", "failed", "not_present"]


@dataclass(frozen=True)
class CheckResult:
    """One check of one machine.

    Attributes:
        name: Of the check.
        status: `not_present`: there is no such device, or nothing that tells of it; never taken for `ok`.
        text: What was found, and against what.
        measured: Figures, for programs.
        advice: What to do about it.
        host: The machine.
    """

    name: str
    status: Status
    text: str
    measured: dict[str, Any] = field(default_factory=dict)
    advice: str = ""
    host: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", self.host or host_name())

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def failures(results: Iterable[CheckResult]) -> list[CheckResult]:
    """Those for which the machine must not be used."""
    return [result for result in results if result.status == "failed"]


def exit_code(results: Iterable[CheckResult]) -> int:
    """0, or `EXIT_NODE_SUSPECT` if a check failed."""
    return EXIT_NODE_SUSPECT if failures(results) else 0
