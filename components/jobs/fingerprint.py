"""What tells that two failures have the same cause, although their numbers, addresses and folders differ."""

import re

_LONGEST = 160

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+, in (?P<function>\S+)', re.MULTILINE)

_HANG = re.compile(r"in '(\w+)' of step")

_ADDRESS = re.compile(r"0x[0-9a-f]+|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|\[[0-9a-f:]+\](?::\d+)?", re.IGNORECASE)

_RUN = re.compile(r"\S*/runs/[^/\s'\"]+")
"""A path up to and with the run's name."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)


def of_error(message: str, traceback: str) -> str:
    """Of an exception: its type, the innermost frame, and what it speaks of.

    Args:
        message: `Type: words`.
        traceback: As Python prints it; may be empty.
    """
    kind, _, words = message.partition(":")
    frames = _FRAME.findall(traceback)
    frame = f"{_place(frames[-1][0])}:{frames[-1][1]}" if frames else ""
    return f"{kind.strip()}@{frame} {normalised(words)}".strip()


def of_hang(evidence: str) -> str:
    """Of a rank that hangs: the part of a step in which it does."""
    part = _HANG.search(evidence)
    return f"hang:{part[1] if part else 'outside of a step'}"


def normalised(words: str) -> str:
    """Words without what differs from one attempt to the next; their first line."""
    line = words.strip().partition("\n")[0]
    for pattern, by in ((_RUN, "RUN"), (_ADDRESS, "ADDRESS"), (_NUMBER, "#")):
        line = pattern.sub(by, line)
    return " ".join(line.split())[:_LONGEST]


def _place(file: str) -> str:
    """A source file without where it is installed."""
    return "/".join(file.replace("\\", "/").split("/")[-2:])
