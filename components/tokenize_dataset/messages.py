"""From a row to a conversation, in the one form that chat templates take."""

import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from components.tokenize_dataset.messages_parse import Message, parse_message
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
from components.tokenize_dataset.unusable import UnusableRow
from training.config import ColumnRole
from training.sources.rows import Row


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
        messages, learned = [], []
        for role in roles:
            for number, item in enumerate(as_list(row.values[columns[role]]) or (), start=1):
                where = f"message {number}" if role == "messages" else f"message {number} of its {role}"
                message = parse_message(item, shape.form == SHAREGPT, where)
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


def _is_weighted(item: Mapping[str, Any], where: str) -> bool:
    weight, train = item.get("weight"), item.get("train")
    if weight not in (None, 0, 1):
        raise UnusableRow(f"has the weight {reprlib.repr(weight)} in {where}, but a weight is 0 or 1")
    if not (train is None or isinstance(train, bool)):
        raise UnusableRow(f"has {reprlib.repr(train)} as train in {where}, but it is true or false")
    return weight != 0 and train in (None, True)


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
    tools = as_list(without_nulls(value))
    tools = None if tools is None else [parsed_json(tool, "{") for tool in tools]
    if tools is None or not all(isinstance(tool, dict) for tool in tools):
        raise UnusableRow(f"has {kind(value)} in the column '{column}', where a list of tools is needed")
    return tools or None
