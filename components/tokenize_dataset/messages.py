"""From a row to a conversation, in the one form that chat templates take."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from components.tokenize_dataset.shapes import (
    CONVERSATIONAL,
    INSTRUCTION,
    SHAREGPT,
    Shape,
    any_form,
    form_of,
    kind,
)
from components.tokenize_dataset.shapes_json import as_list, parsed_json, without_nulls
from training.config import ColumnRole
from training.sources.rows import Row

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


class UnusableRow(ValueError):
    """A row of which nothing can be made; the message is the rest of a sentence that begins with the row."""


class Conversation(NamedTuple):
    """A conversation, up to its last answer that is learned.

    Attributes:
        messages: Not empty.
        learned: Of each message, whether it is an answer that is supervised; True for the last.
        tools: What the assistant may call, as JSON schemas; None if the row has none.
    """

    messages: list[Message]
    learned: list[bool]
    tools: list[Any] | None


def conversation(row: Row, shape: Shape, system_prompt: str | None) -> Conversation:
    """A row's conversation.

    Args:
        row: Of the shape chat, instruction, or prompt_completion as lists of messages.
        shape: What its source was found to be.
        system_prompt: System message of a conversation that has none.

    Raises:
        UnusableRow: It has another shape, an unknown role, an empty answer, or no answer at all.
    """
    check_form(row, shape)
    columns = shape.columns
    if shape.form == INSTRUCTION:
        question, answer = instruction(row, shape)
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        learned = [False, True]
    else:
        roles: tuple[ColumnRole, ...] = ("prompt", "completion") if shape.form == CONVERSATIONAL else ("messages",)
        parse = _sharegpt if shape.form == SHAREGPT else _openai
        messages, learned = [], []
        for role in roles:
            for number, item in enumerate(as_list(row.values[columns[role]]) or (), start=1):
                where = f"message {number}" if role == "messages" else f"message {number} of its {role}"
                message = _parsed(item, where, parse)
                messages.append(message)
                learned.append(role != "prompt" and message["role"] == "assistant" and _is_weighted(item, where))
    _check_answers(messages, learned)
    while learned and not learned[-1]:
        messages.pop()
        learned.pop()
    if not messages:
        raise UnusableRow("has no answer of the assistant to learn: add it, or remove the row")
    if messages[0]["role"] != "system" and (system := _system(row, shape) or system_prompt):
        messages.insert(0, {"role": "system", "content": system})
        learned.insert(0, False)
    return Conversation(messages, learned, _tools(row, shape))


def instruction(row: Row, shape: Shape) -> tuple[str, str]:
    """An instruction with its input below it, and the output.

    Raises:
        UnusableRow: One is no text, or there is no output.
    """
    asked, given, output = instruction_parts(row, shape)
    return (f"{asked}\n\n{given}" if given.strip() else asked), output


def instruction_parts(row: Row, shape: Shape) -> tuple[str, str, str]:
    """Instruction, input (empty if the row has none) and output.

    Raises:
        UnusableRow: One is no text, or there is no output.
    """
    columns = shape.columns
    output = text_of(row, columns["output"])
    if not output.strip():
        raise UnusableRow(f"has an empty answer in '{columns['output']}': add it, or remove the row")
    given = optional_text(row, columns.get("input"))
    return text_of(row, columns["instruction"]), given, output


def text_of(row: Row, column: str) -> str:
    """The text of a column.

    Raises:
        UnusableRow: It holds none.
    """
    value = row.values.get(column)
    if not isinstance(value, str):
        raise UnusableRow(f"has {kind(value)} in the column '{column}', where text is needed: mend or remove it")
    return value


def optional_text(row: Row, column: str | None) -> str:
    """The text of a column, empty where there is none."""
    return "" if column is None or row.values.get(column) is None else text_of(row, column)


def check_characters(text: str) -> None:
    """Check that a text can be written as UTF-8, which tokenizers take.

    Raises:
        UnusableRow: It holds half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnusableRow(
            f"holds half of a surrogate pair (\\u{ord(text[error.start]):x}), which is no character: write the "
            "text anew"
        ) from None


def check_form(row: Row, shape: Shape) -> None:
    """Check that a row has the shape of its source.

    Raises:
        UnusableRow: It has another; names both.
    """
    form = form_of(row.values, shape.format, shape.columns)
    if form == shape.form:
        return
    found = form or any_form(row.values)
    if found is not None:
        raise UnusableRow(
            f"has {found}, but its source has {shape.sentence()}: give each shape a source of its own"
        )
    needed = [column for role, column in shape.columns.items() if role not in ("tools", "system", "input")]
    column = next((column for column in needed if not isinstance(row.values.get(column), str)), needed[0])
    value = row.values.get(column)
    if value in ([], "[]"):
        raise UnusableRow(f"has an empty conversation in the column '{column}': remove the row")
    held = f"{kind(value)} in the column '{column}'" if column in row.values else f"no column '{column}'"
    raise UnusableRow(f"has {held}, but its source has {shape.sentence()}: mend or remove it")


def _parsed(item: Any, where: str, parse: Callable[[Mapping[str, Any], str], Message]) -> Message:
    if not isinstance(item, dict):
        raise UnusableRow(f"has {kind(item)} as {where}, where an object with role and content is needed")
    return parse(item, where)


def _openai(item: Mapping[str, Any], where: str) -> Message:
    message: Message = {
        "role": _role(item.get("role"), _OPENAI_ROLES, where),
        "content": _content(item.get("content"), where),
    }
    if reasoning := next((item[key] for key in _REASONING if item.get(key)), None):
        message["reasoning_content"] = _content(reasoning, f"the reasoning of {where}")
    calls = as_list(item.get("tool_calls")) or []
    # How calls were written before there were several.
    if item.get("function_call") is not None:
        calls = [item["function_call"], *calls]
    if calls:
        message["tool_calls"] = [_call(call, where) for call in calls]
    for key in ("name", "tool_call_id"):
        if item.get(key) is not None:
            message[key] = _content(item[key], f"{key} of {where}")
    if item.get("content") is None and not calls and message["role"] != "assistant":
        raise UnusableRow(f"has no content in {where}, which is of the role {item.get('role')!r}: add it")
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
        raise UnusableRow(f"has the role {given!r} in {where}, but the roles are {', '.join(roles)}")
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
            what = f"a part of the type {part.get('type')!r}" if isinstance(part, dict) else kind(part)
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
    arguments = {} if arguments in (None, "") else without_nulls(arguments)
    extra = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return {**extra, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _is_weighted(item: Mapping[str, Any], where: str) -> bool:
    weight, train = item.get("weight"), item.get("train")
    if weight not in (None, 0, 1):
        raise UnusableRow(f"has the weight {weight!r} in {where}, but a weight is 0 or 1")
    return weight != 0 and train is not False


def _check_answers(messages: list[Message], learned: list[bool]) -> None:
    for number, (message, is_learned) in enumerate(zip(messages, learned, strict=True), start=1):
        said = message["content"].strip() or message.get("tool_calls") or message.get("reasoning_content")
        if is_learned and not said:
            raise UnusableRow(f"has an empty answer in message {number}: add it, or remove the row")


def _system(row: Row, shape: Shape) -> str:
    text = optional_text(row, shape.columns.get("system"))
    return text if text.strip() else ""


def _tools(row: Row, shape: Shape) -> list[Any] | None:
    column = shape.columns.get("tools")
    value = None if column is None else row.values.get(column)
    if value is None or value == "":
        return None
    tools = as_list(value)
    tools = None if tools is None else [parsed_json(tool, "{") for tool in tools]
    if tools is None or not all(isinstance(tool, dict) for tool in tools):
        raise UnusableRow(f"has {kind(value)} in the column '{column}', where a list of tools is needed")
    return without_nulls(tools) or None
