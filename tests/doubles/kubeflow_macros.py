"""What the controller of Kubeflow's schedules does to text: Go's time layouts, and a cron expression's check."""

import re
from datetime import UTC, datetime

# Go's reference time is Mon Jan 2 15:04:05 MST 2006; longest first, as Go reads them.
_LAYOUT = [
    ("2006", "%Y"),
    ("January", "%B"),
    ("Monday", "%A"),
    ("Jan", "%b"),
    ("Mon", "%a"),
    ("MST", "%Z"),
    ("002", "%j"),
    ("01", "%m"),
    ("02", "%d"),
    ("03", "%I"),
    ("04", "%M"),
    ("05", "%S"),
    ("06", "%y"),
    ("15", "%H"),
    ("PM", "%p"),
    ("1", "%-m"),
    ("2", "%-d"),
    ("3", "%-I"),
    ("4", "%-M"),
    ("5", "%-S"),
]


def go_format(moment: datetime, layout: str) -> str:
    text, rest = "", layout
    while rest:
        for part, directive in _LAYOUT:
            if rest.startswith(part):
                text, rest = text + moment.strftime(directive), rest[len(part) :]
                break
        else:
            text, rest = text + rest[0], rest[1:]
    return text


def expand(text: str, *, scheduled: datetime, now: datetime, index: int, run_id: str) -> str:
    """Fill in the macros; unknown ones stay."""
    times = {"ScheduledTime": scheduled.astimezone(UTC), "CurrentTime": now.astimezone(UTC)}

    def fill(match):
        name, dot, layout = match[1].partition(".")
        if name == "RunUUID":
            return run_id
        if name == "Index":
            return str(index)
        if name in times:
            return go_format(times[name], layout if dot else "20060102150405")
        return match[0]

    return re.sub(r"\[\[(.*?)\]\]", fill, text)


_BOUNDS = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6)]
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_NAMES = [{}, {}, {}, {}, {m: n for n, m in enumerate(_MONTHS, 1)}, {d: n for n, d in enumerate(_DAYS)}]


def cron_error(spec: str) -> str:
    """Why robfig/cron 1.2 refuses an expression; empty if it does not."""
    if spec.startswith("@"):
        known = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
        return "" if spec in known or spec.startswith("@every ") else f"Unrecognized descriptor: {spec}"
    fields = spec.split()
    if len(fields) not in (5, 6):
        return f"Expected 5 to 6 fields, found {len(fields)}: {spec}"
    for field, (low, high), names in zip(fields, _BOUNDS, _NAMES, strict=False):
        for part in field.split(","):
            ends, *steps = part.split("/")
            first, *last = ends.split("-")
            try:
                start, end = (low, high) if first in ("*", "?") else (names.get(first.lower(), first),) * 2
                end = names.get(last[0].lower(), last[0]) if last and first not in ("*", "?") else end
                start, end = int(start), int(end)
                step = int(steps[0]) if steps else 1
            except ValueError:
                return f"Failed to parse int from {part}"
            end = high if steps and not last else end
            if start < low:
                return f"Beginning of range ({start}) below minimum ({low}): {part}"
            if end > high:
                return f"End of range ({end}) above maximum ({high}): {part}"
            if start > end:
                return f"Beginning of range ({start}) beyond end of range ({end}): {part}"
            if step == 0:
                return f"Step of range should be a positive number: {part}"
    return ""
