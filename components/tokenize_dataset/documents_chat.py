"""Rows that the model's chat template renders."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from components.tokenize_dataset.messages import conversation
from components.tokenize_dataset.shapes import Shape
from components.tokenize_dataset.template import ChatTemplate, Text
from components.tokenize_dataset.template_special import SpecialTokens, Spelled
from components.tokenize_dataset.text_tokens import TextTokenizer, TokenizedRow
from components.tokenize_dataset.unusable import UnusableRow, check_characters
from training.config import DataConfig
from training.errors import UserError
from training.sources.rows import Malformed, Row


class ChatEncoder:
    """Encodes rows that the model's chat template renders.

    Args:
        data: The config.
        shape: What the source was found to be.
        tokenizer: A fast tokenizer.
        special: Its special tokens.
        texts: It, for many texts at once.

    Raises:
        UserError: There is no template, or it cannot teach an answer.
    """

    def __init__(
        self, data: DataConfig, shape: Shape, tokenizer: Any, special: SpecialTokens, texts: TextTokenizer
    ) -> None:
        if tokenizer.chat_template is None:
            raise UserError(
                f"the data has {shape.form}, but the model's tokenizer has no chat template: set model.name to an "
                "instruction-tuned model, or use prompts and completions"
            )
        self._shape, self._system_prompt = shape, data.system_prompt
        self._special, self._texts = special, texts
        self._template = ChatTemplate(tokenizer, special)

    def encode(self, rows: Sequence[Row]) -> list[TokenizedRow | Malformed]:
        """Encode rows, in their order."""
        rendered = [self._render(row) for row in rows]
        good = [row for row in rendered if not isinstance(row, Malformed)]
        tokens = iter(
            self._texts.rendered(
                [text for row in good for text in row.texts],
                [spelled for row in good for spelled in row.spelled],
                self._template.marks,
            )
        )
        return [
            row if isinstance(row, Malformed) else TokenizedRow([next(tokens) for _ in row.texts], row.prompt)
            for row in rendered
        ]

    def _render(self, row: Row) -> "_Rendered | Malformed":
        try:
            said = conversation(row, self._shape, self._system_prompt)
            hidden = self._special.hide(said)
            texts = self._template.render(hidden or said)
            spelled: list[list[Spelled]] = [[] for _ in texts]
            if hidden:
                shown = [self._special.show(text.text) for text in texts]
                texts = [text._replace(text=new) for text, (new, _) in zip(texts, shown, strict=True)]
                spelled = [found for _, found in shown]
            for text in texts:
                check_characters(text.text)
        except UnusableRow as problem:
            return Malformed(row.origin, str(problem))
        except RecursionError:
            return Malformed(row.origin, "is nested too deeply, in its tools or their calls: mend or remove it")
        last = texts[-1]
        start, end = last.spans[-1]
        if any(token.start < start for token in spelled[-1]):
            # As a text, the prompt would be another than the one that is learned.
            return _Rendered(texts, spelled, None)
        questions = (m["content"] for m in reversed(said.messages[:-1]) if m["role"] == "user")
        answer = said.messages[-1]["content"] or last.text[start:end].removesuffix(self._template.marks.end)
        prompt = {"prompt": last.text[:start], "question": next(questions, ""), "reference": answer}
        return _Rendered(texts, spelled, prompt)


class _Rendered(NamedTuple):
    texts: list[Text]
    spelled: list[list[Spelled]]
    prompt: dict[str, str] | None
