"""From a recipe, overrides and pipeline parameters to one `RunConfig`.

Sources, later wins: recipe file → dotted overrides → flat pipeline parameters that were set.
"""

import contextlib
import difflib
import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from training.config import RunConfig
from training.config.section import section_in
from training.credentials import shown
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
    # A section of which every line is commented out reads as null.
    merged = {k: {} if v is None else dict(v) if isinstance(v, Mapping) else v for k, v in recipe.items()}
    problems: list[str] = []
    for text in overrides:
        try:
            _set(merged, *parse_override(text))
        except UserError as error:
            problems.append(str(error))
    for key, value in (flat or {}).items():
        _set(merged, key, value)
    try:
        config = RunConfig.model_validate(merged)
    except ValidationError as error:
        problems.append(describe(error))
    if problems:
        raise UserError("\n".join(problems))
    return config


def parse_override(text: str) -> tuple[str, Any]:
    """Split `section.field=value`; the value is parsed as YAML.

    YAML reads 1e-4 as text, which the field's type makes a number; so quoted text stays text.

    Raises:
        UserError: The text has no `=`, no known key before it, or a value that is not YAML.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    # The messages leave the value out: it may hold a password that belongs elsewhere.
    if not equals or "." not in key:
        given = f"the override {key!r}" if re.fullmatch(r"[a-z_.-]{0,60}", key) else "an override"
        raise UserError(f"{given} is not of the form section.field=value, as in training.seed=7")
    *parents, field = key.split(".")
    _check_key(parents, field)
    try:
        return key, yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UserError(f"the override of '{key}' has a value that is not YAML: put text in quotes") from None


def split_overrides(text: str) -> list[str]:
    """Split the pipeline's `overrides` text: one override a line, or several on one line between semicolons.

    Programs give a JSON list of strings instead, in which a value may hold semicolons and line breaks.

    Raises:
        UserError: The text begins like a JSON list and is none of strings.
    """
    if text.lstrip().startswith("["):
        try:
            return TypeAdapter(list[str]).validate_json(text)
        except ValidationError:
            raise UserError("the overrides begin with '[' but are not a JSON list of strings") from None
    return [part.strip() for line in text.splitlines() for part in line.split(";") if part.strip()]


def load_recipe(recipe: str) -> dict[str, Any]:
    """The content of a recipe: given as its own text, by a path, or by the name of one that ships.

    Text is what has a line break, or begins like JSON or like a section, as `model: {…}`. It lets a
    recipe travel as a pipeline's parameter.

    Raises:
        UserError: It is none of these, or not a YAML mapping of sections.
    """
    if "\n" in recipe.strip() or re.match(r"\s*(\{|\w+\s*:(\s|$))", recipe):
        return _parse_recipe(recipe, "the recipe that was given as text")
    return read_recipe(find_recipe(recipe))


def find_recipe(name: str) -> Path:
    """Locate a recipe: a path to a YAML file, or the name of one that ships with Shardline.

    Raises:
        UserError: Neither exists; the message lists what ships.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        with contextlib.suppress(OSError):  # a name that is too long
            if path.is_file():
                return path
        problem = f"the recipe file {shown(name)} does not exist"
    else:
        problem = f"there is no recipe {shown(name)}"
    shipped = {file.stem: file for file in sorted(_recipes_folder().glob("*.yaml"))}
    if name in shipped:
        return shipped[name]
    raise UserError(
        f"{problem}{_nearest(path.stem, list(shipped))}: name a .yaml file, or one of {', '.join(shipped)}"
    )


def read_recipe(path: Path) -> dict[str, Any]:
    """Read a recipe file.

    Raises:
        UserError: The file cannot be read, or is not a YAML mapping of sections.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"the recipe '{path}' cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"the recipe '{path}' is not valid YAML: {' '.join(str(error).split())}") from None
    return _parse_recipe(text, f"the recipe '{path}'")


def _parse_recipe(text: str, what: str) -> dict[str, Any]:
    try:
        content = yaml.load(text, _RecipeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{what} is not valid YAML: {_yaml_problem(error)}") from None
    if not isinstance(content, dict):
        raise UserError(f"{what} holds no sections (model:, data:, training:, …)")
    return content


def _yaml_problem(error: Exception) -> str:
    """What is wrong and where, without the text itself: there may be a password on the line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return "a value in it cannot be read"
    return f"{getattr(error, 'problem', None) or 'something'}, line {mark.line + 1}, column {mark.column + 1}"


def to_yaml(config: RunConfig) -> str:
    """Print a config as YAML that `resolve` reads back to an equal config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def describe(error: ValidationError) -> str:
    """Turn pydantic's error into sentences: field, what was given, what is allowed."""
    problems = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"] if part not in _NOT_SHOWN)
        if item["type"] in ("extra_forbidden", "invalid_key"):
            parent, _, key = where.rpartition(".")
            valid = _field_names(parent)
            problems.append(f"{shown(where)} is not a known key{_nearest(key, valid)} (known: {', '.join(valid)})")
        elif item["type"] == "missing":
            problems.append(f"'{where}' is missing: set it in the recipe or as an override")
        elif item["type"] == "value_error":
            problems.append(str(item["ctx"]["error"]))
        elif item["type"] in ("model_type", "model_attributes_type"):
            problems.append(f"'{where}' is {shown(item['input'])}, not a section with fields")
        else:
            # What a variable holds is nobody's business, and may be meant to be a secret.
            hidden = where.startswith(_HIDDEN)
            where = where.partition("=")[0] if hidden else where
            given = "not valid" if hidden else shown(item["input"])
            problems.append(f"'{where}' is {given}: {_allowed(item)}")
    return "\n".join(problems)


_NOT_SHOWN = ("[key]", "one", "several")
"""Parts of an error's place that no user wrote: pydantic's mark of a map's key, and the kinds of `Sources`."""

_HIDDEN = ("cluster.env", "cluster.secrets")

_HINTS = {
    "string_type": "put text in quotes",
    "tuple_type": "write it as a list, [first, second]",
    "dict_type": "write it as a map, {name: value}",
}


def _allowed(item: ErrorDetails) -> str:
    """What is allowed instead of what was given."""
    kind, said = item["type"], f"{item['msg'][0].lower()}{item['msg'][1:]}"
    if kind in ("tuple_type", "dict_type"):
        return _HINTS[kind]
    return f"{said} ({_HINTS[kind]})" if kind in _HINTS else said


class _RecipeLoader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which YAML takes the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"'{key.value}' stands twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _recipes_folder() -> Path:
    # By path, not by import: training must not depend on pipelines.
    return Path(__file__).resolve().parent.parent / "pipelines" / "recipes"


def _set(merged: dict[str, Any], key: str, value: Any) -> None:
    *parents, field = key.split(".")
    _check_key(parents, field)
    place = merged
    for name in parents:
        below = place.get(name)
        # The recipe's own content stays as it is.
        place[name] = {} if below is None else dict(below) if isinstance(below, Mapping) else below
        if not isinstance(place[name], dict):
            return  # what is no section is left for the validation to name
        place = place[name]
    place[field] = value


def _check_key(parents: Sequence[str], field: str) -> None:
    key, known = ".".join([*parents, field]), list(RunConfig.model_fields)
    if not parents or parents[0] not in known:
        section = parents[0] if parents else field
        raise UserError(f"'{key}' names no known section{_nearest(section, known)} (known: {', '.join(known)})")
    for depth in range(1, len(parents)):
        whole = ".".join(parents[: depth + 1])
        if parents[depth] in _field_names(".".join(parents[:depth])) and not _field_names(whole):
            example = "{name: value}" if _is_map(parents[: depth + 1]) else "VALUE"
            raise UserError(f"'{key}' is within {whole}, which is set as a whole: '{whole}={example}'")
    if field not in (fields := _field_names(".".join(parents))):
        fields = fields or _field_names(parents[0])
        elsewhere = [f"{section}.{field}" for section in known if field in _field_names(section)]
        meant = f", did you mean '{elsewhere[0]}'?" if elsewhere else _nearest(field, fields)
        raise UserError(f"'{key}' is not a known key{meant} (known: {', '.join(fields)})")


def _is_map(path: Sequence[str]) -> bool:
    section = _section_at(path[:-1])
    return section is not None and get_origin(section.model_fields[path[-1]].annotation) is dict


def _field_names(path: str) -> list[str]:
    """Fields of the section at a dotted path; none where there is no section."""
    section = _section_at(path.split(".") if path else [])
    return [] if section is None else list(section.model_fields)


def _section_at(path: Sequence[str]) -> type[BaseModel] | None:
    section: type[BaseModel] | None = RunConfig
    for name in path:
        if name.isdigit():
            continue  # a place in a list, whose field was the name before
        if section is None or name not in section.model_fields:
            return None
        section = section_in(section.model_fields[name].annotation)
    return section


def _nearest(given: str, valid: list[str]) -> str:
    close = difflib.get_close_matches(given, valid, n=1, cutoff=0.5)
    return f", did you mean '{close[0]}'?" if close else ""
