"""`{scheduled:%Y-%m-%d}` in a schedule's settings: the time of the firing, which the server fills in.

Kubeflow Pipelines knows the macro `[[ScheduledTime.LAYOUT]]`, with a layout of Go, and always fills in UTC. It has
no arithmetic. It is filled in where each run is made from the pipeline's newest version; with a version that is
fixed, the schedule holds a workflow that is compiled already, and the text arrives as it is
(kubeflow/pipelines#12494).
"""

import re

from training.errors import UserError

_PLACEHOLDER = re.compile(r"\{scheduled([^{}:]*)(?::([^{}]*))?\}")
_LAYOUTS = {
    "Y": "2006",
    "y": "06",
    "m": "01",
    "d": "02",
    "j": "002",
    "H": "15",
    "I": "03",
    "M": "04",
    "S": "05",
    "p": "PM",
    "b": "Jan",
    "B": "January",
    "a": "Mon",
    "A": "Monday",
}
_LITERALS = "-_/.:T "


def to_macros(text: str) -> str:
    """Replace every `{scheduled:FORMAT}` by the server's macro.

    Raises:
        UserError: A format that the macro cannot express.
    """
    return _PLACEHOLDER.sub(lambda match: f"[[ScheduledTime.{_layout(*match.group(0, 1, 2))}]]", text)


def uses_schedule_time(text: str) -> bool:
    """Whether a text has a `{scheduled…}` in it."""
    return _PLACEHOLDER.search(text) is not None


def _layout(whole: str, shift: str, form: str | None) -> str:
    if shift:
        raise UserError(
            f"'{whole}' shifts the time, which Kubeflow Pipelines cannot do: use {{scheduled:FORMAT}} as it is, "
            "and name the data by the day on which it is trained"
        )
    if not form:
        raise UserError(f"'{whole}' has no format: write it like {{scheduled:%Y-%m-%d}}")
    parts = []
    rest = form
    while rest:
        if rest[0] == "%":
            if rest[1:2] not in _LAYOUTS:
                known = " ".join(f"%{name}" for name in _LAYOUTS)
                raise UserError(f"'{rest[:2]}' in '{whole}' is not known: use {known}")
            parts.append(_LAYOUTS[rest[1]])
            rest = rest[2:]
        elif rest[0] in _LITERALS:
            parts.append(rest[0])
            rest = rest[1:]
        else:
            # Go reads letters and digits of a layout as parts of a time.
            raise UserError(
                f"'{rest[0]}' in '{whole}' could be taken for a part of the time: between directives use only "
                "- _ / . : T and spaces, and put other text outside of the braces"
            )
    return "".join(parts)
