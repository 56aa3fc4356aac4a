"""What to do after an attempt that failed: a pure function."""

from dataclasses import dataclass

from training.events import Incident


@dataclass(frozen=True)
class Decision:
    """Whether to try again, and why, as a sentence."""

    retry: bool
    reason: str


_FINAL = {
    "invalid": "trying again cannot mend a configuration or data error",
    "interrupted": "it was asked to stop",
    "queue_timeout": "another attempt would wait in the same queue",
    "start_timeout": "another attempt would wait for the same",
    "run_timeout": "its time is up",
}
"""Why another attempt would be of no use, by class of incident."""


def decide(incident: Incident, attempts_made: int, max_attempts: int) -> Decision:
    """Judge an incident.

    Args:
        incident: How the last attempt ended.
        attempts_made: Attempts of this launch so far, the failed one included.
        max_attempts: How many are allowed.
    """
    if incident.what in _FINAL:
        return Decision(False, _FINAL[incident.what])
    if attempts_made >= max_attempts:
        return Decision(False, f"resilience.max_attempts is {max_attempts}")
    return Decision(True, f"attempt {attempts_made + 1} of {max_attempts} goes on from what was saved")
