"""Chat templates: the text of a conversation, and which of its characters the assistant says."""

from typing import Any

from training.errors import UserError

Message = dict[str, Any]
Span = tuple[int, int]
"""First character and the one after the last."""


def render(tokenizer: Any, messages: list[Message], origin: str) -> tuple[str, list[Span]]:
    """Render a conversation and find what the assistant says in it, for any chat template.

    What a template makes of an assistant's message is what the rendering gains over the prompt that the model is
    given at this turn. White space after the token that ends the turn is left out: generation has stopped there.

    Args:
        tokenizer: Has the chat template.
        messages: The conversation.
        origin: Where it stands, for errors.

    Returns:
        The whole text, and a span for each message of the assistant.

    Raises:
        UserError: The template refuses the conversation, or does not keep earlier turns as they were.
    """
    text = _apply(tokenizer, messages, origin, answer_next=False)
    spans = []
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _apply(tokenizer, messages[:turn], origin, answer_next=True)
        through = _apply(tokenizer, messages[: turn + 1], origin, answer_next=False)
        if not through.startswith(before):
            raise UserError(
                f"{origin}: the chat template begins message {turn + 1} of the assistant in another way than "
                "its own generation prompt does, so the model would not learn to answer this prompt: choose a "
                "model with another template, or set data.format to prompt_completion"
            )
        if not text.startswith(through):
            raise UserError(
                f"{origin}: the chat template rewrites earlier turns (message {turn + 1} is rendered in another "
                "way when others follow it), so one text cannot teach all of its answers: make a row with one "
                "answer of each, or choose a model with another template"
            )
        spans.append((len(before), len(before) + len(through[len(before) :].rstrip())))
    return text, spans


def _apply(tokenizer: Any, messages: list[Message], origin: str, answer_next: bool) -> str:
    import jinja2

    try:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=answer_next)
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        roles = ", ".join(message["role"] for message in messages) or "none"
        raise UserError(
            f"{origin}: the model's chat template refuses these messages, whose roles are {roles}: {error}"
        ) from error
    return text
