"""The reference page of all settings, generated from `RunConfig`."""

import json
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from training.config import RunConfig
from training.config.section import Section, section_in

_SECTION = "section"


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
        parts += _section(name, field, heading="##")
    return "\n".join(parts) + "\n"


def _section(path: str, field: FieldInfo, heading: str) -> list[str]:
    """A section's table, and below it those of the sections within it."""
    section = _section_in(field.annotation)
    assert section is not None
    lines = ["", f"{heading} {path}", "", (section.__doc__ or "").strip(), ""]
    lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
    lines += [_row(key, info) for key, info in section.model_fields.items()]
    below: dict[type[BaseModel], list[str]] = {}
    for key, info in section.model_fields.items():
        if (inner := _section_in(info.annotation)) is not None:
            below.setdefault(inner, []).append(key)
    for keys in below.values():
        # Fields that take the same share a table.
        names = " and ".join(f"{path}.{key}" for key in keys)
        lines += _section(names, section.model_fields[keys[0]], heading="###")
    return lines


def _section_in(annotation: Any) -> type[BaseModel] | None:
    section = section_in(annotation)
    # Kubernetes' own descriptions are not ours to explain.
    return section if section is not None and issubclass(section, Section) else None


def _row(key: str, field: FieldInfo) -> str:
    # A bar would end the table's cell.
    meaning = " ".join((field.description or "").split()).replace("|", r"\|")
    return f"| `{key}` | {_type(field)} | {_default(field)} | {meaning} |"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if isinstance(field.default, BaseModel):
        return "see below"
    # As YAML writes it: null and false, not None and False.
    return f"`{field.default if isinstance(field.default, str) else json.dumps(field.default)}`"


def _type(field: FieldInfo) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(limit, attribute)}"
        for limit in field.metadata
        for attribute, sign in signs.items()
        if hasattr(limit, attribute)
    ]
    return ", ".join([_name(field.annotation), *bounds])


def _name(kind: Any) -> str:
    """Of a type, without what is demanded of it beyond."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _name(inner[0])
    if origin is Literal:
        return ", ".join(f"`{option}`" for option in inner)
    if origin in (Union, UnionType):
        return " or ".join(_name(option) for option in inner)
    if origin is tuple:
        name = _name(inner[0])
        return f"list of {name}{'s' * (name == _SECTION)}"
    if origin is dict:
        return f"map of {_name(inner[0])} to {_name(inner[1])}"
    if kind is NoneType:
        return "null"
    if isinstance(kind, type) and issubclass(kind, Section):
        return _SECTION
    return str(getattr(kind, "__name__", kind))
