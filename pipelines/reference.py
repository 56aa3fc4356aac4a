"""The reference page of all settings, generated from `RunConfig`."""

import json
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from training.config import RunConfig


def reference_page() -> str:
    """Markdown with every section and field: type, default, limits, meaning."""
    parts = [
        "# Configuration",
        "",
        "Made by `make docs` from `training/config`; edit the docstrings there.",
        "",
        "Sources, later wins: the recipe file, then dotted overrides (`section.field=value`), then the pipeline's",
        "own parameters where they are set. `shardline config RECIPE -s section.field=value` prints the result.",
        "An unknown key is an error that names the nearest valid one.",
    ]
    for name, field in RunConfig.model_fields.items():
        section = field.annotation
        assert isinstance(section, type) and issubclass(section, BaseModel)
        parts += ["", f"## {name}", "", (section.__doc__ or "").strip(), ""]
        parts += ["| field | type | default | meaning |", "|---|---|---|---|"]
        parts += [_row(key, info) for key, info in section.model_fields.items()]
    return "\n".join(parts) + "\n"


def _row(key: str, field: FieldInfo) -> str:
    # A bar would end the table's cell.
    meaning = " ".join((field.description or "").split()).replace("|", r"\|")
    return f"| `{key}` | {_type(field)} | {_default(field)} | {meaning} |"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    # As YAML writes it: null and false, not None and False.
    return f"`{field.default if isinstance(field.default, str) else json.dumps(field.default)}`"


def _type(field: FieldInfo) -> str:
    annotation = field.annotation
    options = [option for option in get_args(annotation) if option is not type(None)]
    if options and all(isinstance(option, str) for option in options):
        return ", ".join(f"`{option}`" for option in options)
    if get_origin(annotation) is tuple:
        return f"list of {_name(options[0])}"
    if get_origin(annotation) is dict:
        return f"map of {_name(options[0])} to {_name(options[1])}"
    names = [_name(option) for option in options] or [_name(annotation)]
    text = " or ".join(names) + (" or null" if type(None) in get_args(annotation) else "")
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(limit, attribute)}"
        for limit in field.metadata
        for attribute, sign in signs.items()
        if hasattr(limit, attribute)
    ]
    return ", ".join([text, *bounds])


def _name(kind: Any) -> str:
    """Of a type, without what is demanded of it beyond."""
    if get_origin(kind) is Annotated:
        return _name(get_args(kind)[0])
    return str(getattr(kind, "__name__", kind))
