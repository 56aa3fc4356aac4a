"""A message of either form, in the one that chat templates take."""

import reprlib
from collections.abc import Mapping
from typing import Any

from components.tokenize_dataset.shapes import kind
from components.tokenize_dataset.shapes_json import as_list, parsed_json, without_nulls
from components.tokenize_dataset.unusable import UnusableRow

Message = dict[str, Any]
"""role (system, user, assistant or tool) and content (text); perhaps reasoning_content, tool_calls, tool_call_id
and name."""

_OPENAI_ROLES = {
    "system": "system",
    # What newer APIs call it; templates know the older name.
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
_CALLS = ("function_call", "tool_call")
_REASONING = ("reasoning_content", "thinking", "reasoning")


def parse_message(item: Any, is_sharegpt: bool, where: str) -> Message:
    """Parse a message.

    Args:
        item: As {role, content}, or as {from, value}.
        is_sharegpt: Whether it is the second.
        where: Which message it is, for people.

    Raises:
        UnusableRow: It is no message, or has an unknown role, or something else than text.
    """
    if not isinstance(item, dict):
        raise UnusableRow(f"has {kind(item)} as {where}, where an object with role and content is needed")
    return _sharegpt(item, where) if is_sharegpt else _openai(item, where)


def _openai(item: Mapping[str, Any], where: str) -> Message:
    message: Message = {
        "role": _role(item.get("role"), _OPENAI_ROLES, where),
        "content": _content(item.get("content"), where),
    }
    if reasoning := next((item[key] for key in _REASONING if item.get(key)), None):
        message["reasoning_content"] = _content(reasoning, f"the reasoning of {where}")
    calls = as_list(without_nulls(item.get("tool_calls"))) or []
    # How calls were written before there were several.
    if item.get("function_call") is not None:
        calls = [without_nulls(item["function_call"]), *calls]
    if calls:
        message["tool_calls"] = [_call(call, where) for call in calls]
    for key in ("name", "tool_call_id"):
        if item.get(key) is not None:
            message[key] = _content(item[key], f"{key} of {where}")
    if item.get("content") is None and not calls and message["role"] != "assistant":
        raise UnusableRow(
            f"has no content in {where}, which is of the role {reprlib.repr(item.get('role'))}: add it"
        )
    return message


def _sharegpt(item: Mapping[str, Any], where: str) -> Message:
    role = _role(item.get("from"), _SHAREGPT_ROLES, where)
    value = item.get("value")
    if item.get("from") not in _CALLS:
        return {"role": role, "content": _content(value, where)}
    calls = parsed_json(value, "[{")
    calls = calls if isinstance(calls, list) else [calls]
    return {"role": role, "content": "", "tool_calls": [_call(call, where) for call in calls]}


def _role(given: Any, roles: Mapping[str, str], where: str) -> str:
    if not isinstance(given, str) or given not in roles:
        raise UnusableRow(f"has the role {reprlib.repr(given)} in {where}, but the roles are {', '.join(roles)}")
    return roles[given]


def _content(value: Any, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise UnusableRow(f"has {kind(value)} as {where}, where text, or a list of text parts, is needed")
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            what = f"a part of the type {reprlib.repr(part.get('type'))}" if isinstance(part, dict) else kind(part)
            raise UnusableRow(f"has {what} in {where}, but only text parts can be learned: remove it")
        texts.append(part["text"])
    return "\n".join(texts)


def _call(call: Any, where: str) -> dict[str, Any]:
    call = parsed_json(call, "{")
    function = parsed_json(call.get("function", call), "{") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise UnusableRow(f"has a tool call without a name in {where}: write it as {{name, arguments}}")
    # An object, as templates that write JSON themselves would quote a text once more.
    arguments = parsed_json(function.get("arguments"), "{")
    arguments = {} if arguments in (None, "") else arguments
    extra = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return {**extra, "type": "function", "function": {"name": function["name"], "arguments": arguments}}
