"""What to do after an attempt that failed: a pure function."""

from dataclasses import dataclass

from training.events import Incident


@dataclass(frozen=True)
class Decision:
    """Whether to try again, and why, as a sentence."""

    retry: bool
    reason: str


def decide(incident: Incident, attempts_made: int, max_attempts: int) -> Decision:
    """Judge an incident.

    Args:
        incident: How the last attempt ended.
        attempts_made: Attempts of this launch so far, the failed one included.
        max_attempts: How many are allowed.
    """
    if incident.what == "invalid":
        return Decision(False, "trying again cannot mend a configuration or data error")
    if incident.what == "interrupted":
        return Decision(False, "it was asked to stop")
    if attempts_made >= max_attempts:
        return Decision(False, f"resilience.max_attempts is {max_attempts}")
    return Decision(True, f"attempt {attempts_made + 1} of {max_attempts} goes on from the newest checkpoint")
