"""From a recipe, overrides and pipeline parameters to one `RunConfig`.

Sources, later wins: recipe file → dotted overrides → flat pipeline parameters that were set.
"""

import contextlib
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from training.config import RunConfig
from training.errors import UserError


def resolve(
    recipe: Mapping[str, Any],
    overrides: Sequence[str] = (),
    flat: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Merge the sources of a run's configuration and check the result.

    Args:
        recipe: A recipe's content, nested by section.
        overrides: `section.field=value` strings; the value is YAML, so `null`, numbers and lists work.
        flat: Dotted field → value, for the pipeline's flat parameters that were set.

    Raises:
        UserError: An unknown key (with the nearest valid one), a value out of range, or fields that do not fit
            together. All problems are listed at once.
    """
    merged: dict[str, Any] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in recipe.items()}
    for key, value in [*map(parse_override, overrides), *(flat or {}).items()]:
        section, _, field = key.partition(".")
        _check_key(section, field, given=key)
        if not isinstance(merged.setdefault(section, {}), dict):
            raise UserError(f"the recipe's '{section}' is {merged[section]!r}, not a section with fields")
        merged[section][field] = value
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as error:
        raise UserError(describe(error)) from None


def parse_override(text: str) -> tuple[str, Any]:
    """Split `section.field=value`; the value is parsed as YAML.

    Raises:
        UserError: The text has no `=`, no dot in its key, or a value that is not YAML.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or "." not in key:
        raise UserError(f"the override {text!r} is not of the form section.field=value, as in training.seed=7")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        raise UserError(f"the override {text!r} has a value that is not YAML: put text in quotes") from None
    # YAML 1.1 reads 1e-4 as text; people mean the number.
    if isinstance(parsed, str):
        with contextlib.suppress(ValueError):
            parsed = float(parsed)
    return key, parsed


def split_overrides(text: str) -> list[str]:
    """Split the pipeline's `overrides` text: one override a line, or several on one line between semicolons."""
    return [part.strip() for line in text.splitlines() for part in line.split(";") if part.strip()]


def find_recipe(name: str) -> Path:
    """Locate a recipe: a path to a YAML file, or the name of one that ships with Shardline.

    Raises:
        UserError: Neither exists; the message lists what ships.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise UserError(f"the recipe file '{name}' does not exist")
    shipped = {file.stem: file for file in sorted(_recipes_folder().glob("*.yaml"))}
    if name in shipped:
        return shipped[name]
    raise UserError(
        f"there is no recipe '{name}'{_nearest(name, list(shipped))}: name a .yaml file, or one of "
        f"{', '.join(shipped)}"
    )


def read_recipe(path: Path) -> dict[str, Any]:
    """Read a recipe file.

    Raises:
        UserError: The file cannot be read, or is not a YAML mapping of sections.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"the recipe '{path}' cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"the recipe '{path}' is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"the recipe '{path}' holds no sections (model:, data:, training:, …)")
    return content


def to_yaml(config: RunConfig) -> str:
    """Print a config as YAML that `resolve` reads back to an equal config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def describe(error: ValidationError) -> str:
    """Turn pydantic's error into sentences: field, what was given, what is allowed."""
    problems = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            parent, _, key = where.rpartition(".")
            valid = _field_names(parent)
            problems.append(f"'{where}' is not a known key{_nearest(key, valid)} (known: {', '.join(valid)})")
        elif item["type"] == "missing":
            problems.append(f"'{where}' is missing: set it in the recipe or as an override")
        elif item["type"] == "value_error":
            problems.append(str(item["ctx"]["error"]))
        else:
            problems.append(f"'{where}' is {item['input']!r}: {item['msg'][0].lower()}{item['msg'][1:]}")
    return "\n".join(problems)


def _recipes_folder() -> Path:
    # By path, not by import: training must not depend on pipelines.
    return Path(__file__).resolve().parent.parent / "pipelines" / "recipes"


def _check_key(section: str, field: str, given: str) -> None:
    sections = list(RunConfig.model_fields)
    if section not in sections:
        raise UserError(
            f"'{given}' names no known section{_nearest(section, sections)} (known: {', '.join(sections)})"
        )
    fields = _field_names(section)
    if field not in fields:
        raise UserError(f"'{given}' is not a known key{_nearest(field, fields)} (known: {', '.join(fields)})")


def _field_names(section: str) -> list[str]:
    if not section:
        return list(RunConfig.model_fields)
    kind = RunConfig.model_fields[section].annotation
    assert isinstance(kind, type) and issubclass(kind, BaseModel)
    return list(kind.model_fields)


def _nearest(given: str, valid: list[str]) -> str:
    close = difflib.get_close_matches(given, valid, n=1, cutoff=0.5)
    return f", did you mean '{close[0]}'?" if close else ""
