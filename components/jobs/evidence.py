"""From what a cluster says of a job's end to its cause, in words."""

from typing import Any

from components.cluster.job_state import PodEnd
from components.jobs.launchers import Ending
from training.errors import EXIT_INTERRUPTED

_MAX_EVENTS = 12

_OOM = "OOMKilled"

_EVICTED = "Evicted"


def describe_ending(
    ends: list[PodEnd], said: list[str], events: list[dict[str, Any]], *, gone: bool = False
) -> Ending:
    """The first pod that failed, and what was said about it.

    Args:
        ends: Of the pods that ended.
        said: The job's own sentences.
        events: About the job and its pods, oldest first.
        gone: Whether the job was deleted.
    """
    failed = sorted((end for end in ends if end.exit_code != 0), key=_order)
    lines = [f"{end.pod} on {end.host or 'no machine'}: {_end(end)}" for end in failed]
    lines += [sentence for sentence in said if sentence]
    lines += event_lines(events)
    evidence = "\n".join(lines)
    if not failed:
        what = "interrupted" if gone else None
        return Ending(what=what, evidence=evidence or "the job is gone" if gone else evidence)
    first = failed[0]
    # Pods are told to stop once another has failed, so theirs is not the cause.
    what = _what(first, gone)
    return Ending(what=what, exit_code=first.exit_code, node=first.pod, host=first.host, evidence=evidence)


def event_lines(events: list[dict[str, Any]]) -> list[str]:
    """The newest warnings, one a line, repetitions as a number."""
    lines = []
    for event in [event for event in events if event.get("type") == "Warning"][-_MAX_EVENTS:]:
        times = f" ({event['count']} times)" if event.get("count", 1) > 1 else ""
        name = event["involvedObject"].get("name", "")
        lines.append(f"{event.get('reason', '')} {name}: {event.get('message', '')}{times}")
    return list(dict.fromkeys(lines))


def _order(end: PodEnd) -> tuple[bool, str, int]:
    # A pod that is evicted gets SIGTERM too, and may end with the same code.
    was_told_to_stop = end.exit_code == EXIT_INTERRUPTED and end.reason != _EVICTED
    return (was_told_to_stop, end.finished, end.node_rank)


def _what(end: PodEnd, gone: bool) -> str | None:
    if end.reason == _OOM:
        return "oom"
    if end.reason == _EVICTED or end.exit_code is None:
        return "evicted"
    if end.exit_code == EXIT_INTERRUPTED:
        # Deleted from outside, or preempted: the ranks saved and left.
        return "interrupted" if gone else "preempted"
    return None


def _end(end: PodEnd) -> str:
    code = "ended without an exit code" if end.exit_code is None else f"exit code {end.exit_code}"
    reason = f", {end.reason}" if end.reason and end.reason != "Error" else ""
    message = f": {end.message}" if end.message else ""
    return f"{code}{reason}{message}"
