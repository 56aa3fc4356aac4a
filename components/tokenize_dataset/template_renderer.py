"""Running the model's chat template."""

import datetime
import re
from typing import Any

from components.tokenize_dataset.messages import Conversation
from components.tokenize_dataset.messages_parse import Message
from components.tokenize_dataset.unusable import UnusableRow

_TODAY = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")

_DATE = datetime.date(2024, 7, 26)
"""What Llama's templates write where they know no clock."""


class Renderer:
    """Renders conversations with a tokenizer's chat template.

    Args:
        tokenizer: Has the template, or several, of which one is for tools.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special_tokens = tokenizer.special_tokens_map
        self._templates: dict[bool, str] = {}

    def render(self, conversation: Conversation, num_messages: int, answer_next: bool) -> str:
        """The text of a conversation's first messages.

        Args:
            conversation: The conversation.
            num_messages: How many of its messages.
            answer_next: Whether the prompt for the assistant's answer follows.

        Raises:
            UnusableRow: The template refuses them.
        """
        import jinja2

        messages, tools = conversation.messages[:num_messages], conversation.tools
        try:
            text = self._text(messages, tools, answer_next)
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
            ArithmeticError,
        ) as error:
            roles = ", ".join(message["role"] for message in messages) or "none"
            raise UnusableRow(
                f"is refused by the model's chat template (the roles are {roles}): {error or type(error).__name__}"
            ) from error
        return text

    def _text(self, messages: list[Message], tools: list[Any] | None, answer_next: bool) -> str:
        # Not the tokenizer's own method, which takes no empty list and copies every message twice.
        from transformers.utils import chat_template_utils

        template = self._template(tools is not None)
        given = {"add_generation_prompt": answer_next, **self._special_tokens}
        if tools is None and all(_is_plain(message) for message in messages):
            # As the function below does, without the copies by which it keeps other objects from templates.
            compiled = chat_template_utils._compile_jinja_template(template)
            return str(compiled.render(messages=messages, tools=None, documents=None, **given))
        (text,), _ = chat_template_utils.render_jinja_template([messages], tools, chat_template=template, **given)
        return str(text)

    def _template(self, with_tools: bool) -> str:
        if with_tools not in self._templates:
            template = self._tokenizer.get_chat_template(None, [{}] if with_tools else None)
            self._templates[with_tools] = _without_clock(template)
        return self._templates[with_tools]


def _is_plain(message: Message) -> bool:
    """Whether a message has a role and a content alone, both nothing but text."""
    return len(message) == 2 and type(message["role"]) is str and type(message["content"]) is str


def _without_clock(template: str) -> str:
    """A template that writes the same date every day, or the same rows would give other tokens tomorrow."""
    return _TODAY.sub(lambda match: repr(_DATE.strftime(match[2])), template)
