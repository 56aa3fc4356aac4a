"""Running the model's chat template."""

import datetime
import re
from typing import Any

from components.tokenize_dataset.messages import Conversation
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
        # Not the tokenizer's own method, which takes no empty list and copies every message twice.
        import jinja2
        from transformers.utils.chat_template_utils import render_jinja_template

        messages, tools = conversation.messages[:num_messages], conversation.tools
        try:
            (text,), _ = render_jinja_template(
                conversations=[messages],
                tools=tools,
                chat_template=self._template(tools is not None),
                add_generation_prompt=answer_next,
                **self._special_tokens,
            )
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
        return str(text)

    def _template(self, with_tools: bool) -> str:
        if with_tools not in self._templates:
            template = self._tokenizer.get_chat_template(None, [{}] if with_tools else None)
            self._templates[with_tools] = _without_clock(template)
        return self._templates[with_tools]


def _without_clock(template: str) -> str:
    """A template that writes the same date every day, or the same rows would give other tokens tomorrow."""
    return _TODAY.sub(lambda match: repr(_DATE.strftime(match[2])), template)
