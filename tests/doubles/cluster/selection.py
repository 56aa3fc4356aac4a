"""Label and field selectors."""

import re

from tests.doubles.cluster.errors import failure
from tests.doubles.cluster.resources import METADATA_FIELDS

REQUIREMENT = re.compile(
    r"([^\s!=,()]+)\s+(in|notin)\s+\(([^)]*)\)|(!?)([^\s!=,()]+)\s*(?:(==|=|!=)\s*([^\s,()]*))?"
)


def label_selector(text):
    """A test of an object's labels."""
    requirements = []
    position = 0
    while position < len(text):
        if re.match(r"[^\s!=,()]+\s+(in|notin)\s+\([^)]*$", text[position:]):
            raise failure(400, "unable to parse requirement: found '', expected: ',' or ')'")
        match = REQUIREMENT.match(text, position)
        if not match or (match.end() < len(text) and text[match.end()] != ","):
            raise failure(400, f"unable to parse requirement: found '{text[position:]}', expected: identifier")
        requirements.append(_requirement(match))
        position = match.end() + 1
    return lambda item: all(test(item["metadata"].get("labels") or {}) for test in requirements)


def field_selector(resource, text):
    """A test of an object's fields; which fields may be named depends on the kind."""
    requirements = []
    for part in filter(None, text.split(",")):
        path, operator, value = re.fullmatch(r"([^!=]+)(==|!=|=)(.*)", part).groups()
        if path not in (*METADATA_FIELDS, *resource.fields):
            raise failure(400, f"field label not supported: {path}")
        requirements.append((path.split("."), operator != "!=", value))
    return lambda item: all((_value(item, path) == value) is equal for path, equal, value in requirements)


def _requirement(match):
    key, operator, values, negated, name, comparison, value = match.groups()
    if operator:
        allowed = {part.strip() for part in values.split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in allowed
        return lambda labels: labels.get(key) not in allowed
    if comparison == "!=":
        return lambda labels: labels.get(name) != value
    if comparison:
        return lambda labels: labels.get(name) == value
    return lambda labels: (name in labels) is not bool(negated)


def _value(item, path):
    for key in path:
        item = (item or {}).get(key)
    return "" if item is None else str(item)
