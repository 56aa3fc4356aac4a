"""The log of a container, and how it is read over the API."""

import re
import threading
import time
from datetime import UTC, datetime

from tests.doubles.cluster import errors

PATIENCE = 1.0
"""Seconds without a line after which a stream looks whether its client is still there."""
GO_FORM = "2006-01-02T15:04:05Z07:00"
WAITING = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


class ContainerLog:
    """Lines with the times at which they came, in nanoseconds; whoever follows it waits on `changed`."""

    def __init__(self):
        self.changed = threading.Condition()
        self.lines = []
        self.ended = False

    def append(self, line, at=None):
        """Append a line, which may lack the newline at its end if it is the last."""
        with self.changed:
            self.lines.append((at or time.time_ns(), line))
            self.changed.notify_all()

    def end(self):
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def text(self):
        with self.changed:
            return b"".join(line for _, line in self.lines).decode(errors="replace")


class LogOptions:
    """Which lines a client wants; raises for what the server refuses."""

    def __init__(self, pod, query):
        self.follow = query.get("follow") in ("true", "1", "True")
        self.timestamps = query.get("timestamps") in ("true", "1", "True")
        self.previous = query.get("previous") in ("true", "1", "True")
        self.tail = _whole_number(pod, query, "tailLines", at_least=0)
        self.limit = _whole_number(pod, query, "limitBytes", at_least=1)
        self.since = 0
        if "sinceTime" in query and "sinceSeconds" in query:
            text = "at most one of `sinceTime` or `sinceSeconds` may be specified"
            raise _invalid(pod, "[]", "FieldValueForbidden", f"Forbidden: {text}")
        if "sinceTime" in query:
            self.since = _seconds(query["sinceTime"]) * 10**9
        elif (seconds := _whole_number(pod, query, "sinceSeconds", at_least=1)) is not None:
            self.since = time.time_ns() - seconds * 10**9


def stream(log, options):
    """Pieces of a log, a line each; an empty one now and then asks whether somebody listens."""
    left = options.limit if options.limit is not None else float("inf")
    with log.changed:
        end = len(log.lines)
        chosen = [line for line in log.lines if line[0] >= options.since]
    if options.tail is not None:
        chosen = chosen[len(chosen) - options.tail :] if options.tail else []
    while True:
        for at, line in chosen:
            piece = (_stamp(at) + line if options.timestamps else line)[: int(min(left, 2**40))]
            left -= len(piece)
            if piece:
                yield piece
            if left <= 0:
                return
        if not options.follow:
            return
        with log.changed:
            if len(log.lines) == end:
                if log.ended:
                    return
                log.changed.wait(PATIENCE)
            chosen = [line for line in log.lines[end:] if line[0] >= options.since]
            end = len(log.lines)
        if not chosen:
            yield b""


def waiting(pod, container):
    """The refusal while a container does not run yet; `None` once it did."""
    name = container["name"]
    statuses = pod["status"].get("containerStatuses") or [{"state": {"waiting": {"reason": "ContainerCreating"}}}]
    if reason := statuses[0]["state"].get("waiting", {}).get("reason"):
        text = WAITING.get(reason, reason)
        message = f'container "{name}" in pod "{pod["metadata"]["name"]}" is waiting to start: {text}'
        return errors.failure(400, message)
    return None


def no_previous(pod, container):
    message = f'previous terminated container "{container}" in pod "{pod}" not found'
    return errors.failure(400, message)


def _seconds(text):
    """The whole second of a time: the API's times carry no fractions, whatever a client sends."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    if not match:
        message = f'parsing time "{text}" as "{GO_FORM}": cannot parse "{text}" as "2006"'
        raise errors.failure(400, message)
    return int(datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00")).timestamp())


def _stamp(at):
    seconds, nanoseconds = divmod(at, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z ".encode()


def _whole_number(pod, query, name, at_least):
    if name not in query:
        return None
    value = int(query[name])
    if value < at_least:
        text = f"Invalid value: {value}: must be greater than or equal to {at_least}"
        raise _invalid(pod, name, "FieldValueInvalid", text)
    return value


def _invalid(pod, path, reason, message):
    return errors.invalid("PodLogOptions", "", pod, [(path, reason, message)])
