"""What the rows of a source are: which shape, in which columns."""

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from components.tokenize_dataset.shapes_json import as_list
from training.config import ColumnRole, DataSource
from training.errors import UserError
from training.sources.rows import Row

ShapeFormat = Literal["chat", "prompt_completion", "instruction", "text"]

OPENAI = "OpenAI messages"
SHAREGPT = "ShareGPT conversations"
STRINGS = "prompts and completions"
CONVERSATIONAL = "prompts and completions as lists of messages"
INSTRUCTION = "instructions and outputs"
TEXT = "plain text"

_NAMES: dict[ColumnRole, tuple[str, ...]] = {
    "messages": ("messages", "conversations", "conversation"),
    "tools": ("tools", "functions"),
    "system": ("system", "system_prompt"),
    "prompt": ("prompt",),
    "completion": ("completion",),
    "instruction": ("instruction",),
    "input": ("input", "context"),
    "output": ("output", "response"),
    "text": ("text",),
}
"""Names that columns usually have, by what they are for."""

_NEEDED: dict[ShapeFormat, tuple[ColumnRole, ...]] = {
    "chat": ("messages",),
    "prompt_completion": ("prompt", "completion"),
    "instruction": ("instruction", "output"),
    "text": ("text",),
}
_OPTIONAL: dict[ShapeFormat, tuple[ColumnRole, ...]] = {
    "chat": ("tools", "system"),
    "prompt_completion": ("tools", "system"),
    "instruction": ("input", "system"),
    "text": (),
}

_MOST = 0.9
"""Share of the first rows that must have one form; the others are told apart one by one, as malformed."""


@dataclass(frozen=True)
class Shape:
    """The shape of a source's rows.

    Attributes:
        format: As `data.format` has it, resolved.
        form: The same for people, and more exactly, as "ShareGPT conversations".
        columns: The columns that documents are made from, by what they are for.
    """

    format: ShapeFormat
    form: str
    columns: dict[ColumnRole, str]

    def sentence(self) -> str:
        """What was found and where, as "OpenAI messages in the column 'messages', tools in 'tools'"."""
        needed = [self.columns[role] for role in _NEEDED[self.format]]
        where = f"the column{'s' * (len(needed) > 1)} {' and '.join(map(repr, needed))}"
        people = {"tools": "tools", "system": "system messages", "input": "inputs"}
        more = [f"{people[role]} in '{column}'" for role, column in self.columns.items() if role in people]
        return ", ".join([f"{self.form} in {where}", *more])


def detect(rows: Sequence[Row], source: DataSource, name: str) -> Shape:
    """Find the shape of a source from its first rows.

    A format that the config names is taken, and so are its columns; what it leaves open is found from the columns'
    usual names and from what they hold, if that leaves one choice.

    Args:
        rows: The first rows.
        source: With `format` and `columns` resolved, as of `DataConfig.train_sources`.
        name: Of the source, for people.

    Raises:
        UserError: There is no row, no shape fits, several do, or the rows are of several shapes; shows the
            columns.
    """
    if not rows:
        raise UserError(f"{name} has no row: add some, or leave it out")
    given = source.columns or {}
    columns = list(dict.fromkeys(column for row in rows for column in row.values))
    filled = {column for row in rows for column, value in row.values.items() if value is not None}
    _check_given(given, columns, name)
    wanted: Sequence[ShapeFormat] = list(_NEEDED) if source.format in (None, "auto") else [source.format]  # type: ignore[list-item]
    found: list[tuple[Counter[str], ShapeFormat, dict[ColumnRole, str]]] = []
    for shape_format in wanted:
        if not set(given) <= {*_NEEDED[shape_format], *_OPTIONAL[shape_format]}:
            continue
        chosen = _columns(shape_format, given, columns, filled, name, certain=len(wanted) == 1)
        forms = Counter(form for row in rows if (form := form_of(row.values, shape_format, chosen)))
        if forms:
            found.append((forms, shape_format, chosen))
    if not found:
        raise UserError(_no_shape(rows, columns, wanted, given, name))
    if len(found) > 1:
        fits = " and as ".join(
            f"{shape_format} ({', '.join(chosen.values())})" for _, shape_format, chosen in found
        )
        raise UserError(
            f"{name} can be read as {fits}: set data.format to the one that is meant. "
            f"Its columns are {', '.join(columns)}"
        )
    forms, shape_format, chosen = found[0]
    ((form, count), *others) = forms.most_common()
    if others and count < _MOST * forms.total():
        raise UserError(_mixed(rows, shape_format, chosen, name))
    return Shape(shape_format, form, chosen)


def form_of(values: Mapping[str, Any], shape_format: ShapeFormat, columns: Mapping[ColumnRole, str]) -> str | None:
    """The form that a row has under a format, by what its columns hold; None if it has not that format."""
    held = [values.get(columns[role]) if role in columns else None for role in _NEEDED[shape_format]]
    if shape_format == "chat":
        return _form_of_messages(held[0])
    if shape_format == "prompt_completion" and all(_form_of_messages(value) == OPENAI for value in held):
        return CONVERSATIONAL
    if all(isinstance(value, str) for value in held):
        return {"prompt_completion": STRINGS, "instruction": INSTRUCTION, "text": TEXT}[shape_format]
    return None


def any_form(values: Mapping[str, Any]) -> str | None:
    """The form that a row has by its columns' usual names; None if it has none, or could have several."""
    filled = {column for column, value in values.items() if value is not None}
    forms = set()
    for shape_format in _NEEDED:
        columns = {role: name for role, names in _NAMES.items() for name in names if name in filled}
        forms.add(form_of(values, shape_format, columns))
    forms.discard(None)
    return forms.pop() if len(forms) == 1 else None


def _form_of_messages(value: Any) -> str | None:
    messages = as_list(value)
    if not messages or not isinstance(messages[0], dict):
        return None
    if messages[0].get("role") is not None:
        return OPENAI
    return SHAREGPT if messages[0].get("from") is not None else None


def _columns(
    shape_format: ShapeFormat,
    given: Mapping[ColumnRole, str],
    columns: Sequence[str],
    filled: set[str],
    name: str,
    certain: bool,
) -> dict[ColumnRole, str]:
    """The format's columns as far as they are found: as given, or by their usual names."""
    chosen: dict[ColumnRole, str] = {}
    for role in (*_NEEDED[shape_format], *_OPTIONAL[shape_format]):
        if role in given:
            chosen[role] = given[role]
            continue
        named = [column for column in _NAMES[role] if column in columns]
        # A column of nulls, as a union of sources leaves it behind, is no choice beside one that holds something.
        named = [column for column in named if column in filled] or named[:1]
        if len(named) > 1 and certain:
            raise UserError(
                f"{name} has the columns {' and '.join(named)}, each of which could be the {role}: set "
                f"data.columns to {{{role}: {named[0]}}}, or to the other. Its columns are {', '.join(columns)}"
            )
        if named:
            chosen[role] = named[0]
    return chosen


def _check_given(given: Mapping[ColumnRole, str], columns: Sequence[str], name: str) -> None:
    for role, column in given.items():
        if column not in columns:
            close = difflib.get_close_matches(column, columns, n=1, cutoff=0.5)
            raise UserError(
                f"data.columns says that the {role} of {name} is in '{column}', but its columns are "
                f"{', '.join(columns) or 'none'}: set {role} to one of these"
                + (f", perhaps {close[0]}" if close else "")
            )


def _no_shape(
    rows: Sequence[Row],
    columns: Sequence[str],
    wanted: Sequence[ShapeFormat],
    given: Mapping[ColumnRole, str],
    name: str,
) -> str:
    first = rows[0].values
    there = ", ".join(f"{column} ({kind(first.get(column))})" for column in columns) or "none"
    if len(wanted) > 1:
        roles = f" with {', '.join(given)} as data.columns has them" if given else ""
        return (
            f"{name} has none of the shapes that are found by themselves{roles}. Its columns are {there}. Say "
            "what they are: data.format chat with data.columns {messages: …}, prompt_completion with {prompt: …, "
            "completion: …}, instruction with {instruction: …, output: …}, or text with {text: …}"
        )
    (shape_format,) = wanted
    needs = " and ".join(_NEEDED[shape_format])
    foreign = set(given) - {*_NEEDED[shape_format], *_OPTIONAL[shape_format]}
    if foreign:
        return (
            f"data.columns names {', '.join(sorted(foreign))} for {name}, but rows of the format {shape_format} "
            f"have {', '.join((*_NEEDED[shape_format], *_OPTIONAL[shape_format]))}: change data.format or "
            "data.columns"
        )
    holds = {
        "chat": "a list of {role, content} or {from, value} messages",
        "prompt_completion": "text, or both lists of messages",
    }.get(shape_format, "text")
    return (
        f"data.format is {shape_format}, which needs {needs} ({holds}), but {name} has the columns {there}: set "
        f"data.columns to {{{', '.join(f'{role}: …' for role in _NEEDED[shape_format])}}}, or data.format to "
        "another format"
    )


def _mixed(rows: Iterable[Row], shape_format: ShapeFormat, columns: Mapping[ColumnRole, str], name: str) -> str:
    firsts: dict[str, str] = {}
    for row in rows:
        if form := form_of(row.values, shape_format, columns):
            firsts.setdefault(form, row.origin)
    seen = ", but ".join(f"{origin} has {form}" for form, origin in firsts.items())
    return f"{name} is mixed: {seen}. Give each shape a file and a source of its own"


def kind(value: Any) -> str:
    """What a value is, for people."""
    if value is None:
        return "null"
    names = {str: "text", list: "list", dict: "object", bool: "true or false", int: "number", float: "number"}
    return names.get(type(value), type(value).__name__)
