"""Columns that hold JSON, as a value or as its text."""

import json
from typing import Any


def as_list(value: Any) -> list[Any] | None:
    """The list that a column holds, also where it is written as JSON text; None if it is no list."""
    parsed = parsed_json(value, "[")
    return parsed if isinstance(parsed, list) else None


def parsed_json(value: Any, begins: str) -> Any:
    """What a text stands for if it is JSON and begins with one of these characters; anything else as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in tuple(begins):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def without_nulls(value: Any) -> Any:
    """The value without keys that hold null: a table gives every object the keys of all others.

    What is still JSON text is left as it is: its nulls were written by someone.
    """
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
