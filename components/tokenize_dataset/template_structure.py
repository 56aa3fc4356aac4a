"""Conversations of one structure, and an example of each to try a template with."""

from typing import Any, NamedTuple

from components.tokenize_dataset.messages import Conversation
from components.tokenize_dataset.messages_parse import Message


class Structure(NamedTuple):
    """What of a conversation a template may decide by, apart from what its texts say.

    Attributes:
        turns: Of each message its role, whether it is learned, and what it has besides content.
        has_tools: Whether the assistant is given tools.
    """

    turns: tuple[tuple[str, bool, tuple[str, ...]], ...]
    has_tools: bool

    @property
    def is_plain(self) -> bool:
        """Whether there are only texts of system, user and assistant."""
        return not self.has_tools and all(role != "tool" and keys == ("content",) for role, _, keys in self.turns)


def structure_of(conversation: Conversation) -> Structure:
    """The structure of a conversation."""
    turns = tuple(
        (message["role"], learned, ("content",) if len(message) == 2 and message["content"] else _keys(message))
        for message, learned in zip(conversation.messages, conversation.learned, strict=True)
    )
    return Structure(turns, conversation.tools is not None)


def example(structure: Structure) -> tuple[Conversation, dict[str, str]]:
    """An example of a structure.

    Returns:
        The conversation, and its texts, each of which has to be rendered: to each what is wrong with a row of this
        structure if it is not.
    """
    parts: dict[str, str] = {}
    messages: list[Message] = []
    for number, (role, learned, keys) in enumerate(structure.turns, start=1):
        message: dict[str, Any] = {"role": role, "content": ""}
        if "content" in keys:
            message["content"] = f"Text of message {number}."
            parts[message["content"]] = f"has a message of the role {role} (message {number}), which {_LEAVES_OUT}"
        if "reasoning_content" in keys:
            message["reasoning_content"] = f"Thought of message {number}."
            # Of answers that are not learned, only what the template keeps of earlier turns matters.
            if learned:
                parts[message["reasoning_content"]] = f"has a thought in message {number}, which {_LEAVES_OUT}"
        if "tool_calls" in keys:
            name = f"function_{number}"
            function = {"name": name, "arguments": {"argument": f"value {number}"}}
            # Some templates want an id of nine letters or digits.
            message["tool_calls"] = [{"id": f"call{number:05}", "type": "function", "function": function}]
            parts[name] = f"has a tool call in message {number}, which {_LEAVES_OUT}"
        for key in ("name", "tool_call_id"):
            if key in keys:
                message[key] = f"call{number:05}"
        messages.append(message)
    tools = [_TOOL] if structure.has_tools else None
    if tools:
        parts["function_of_the_example"] = f"has tools, which {_LEAVES_OUT}"
    return Conversation(messages, [learned for _, learned, _ in structure.turns], tools), parts


_LEAVES_OUT = (
    "the model's chat template leaves out: choose a model with another template, or remove it from the data"
)

_TOOL = {
    "type": "function",
    "function": {
        "name": "function_of_the_example",
        "description": "An example.",
        "parameters": {
            "type": "object",
            "properties": {"argument": {"type": "string", "description": "A value."}},
            "required": ["argument"],
        },
    },
}


def _keys(message: Message) -> tuple[str, ...]:
    return tuple(sorted(key for key, value in message.items() if key != "role" and value))
