"""Rows that are tokenized as they are: plain text, and prompts with their completions."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from components.tokenize_dataset.messages import (
    check_form,
    instruction,
    instruction_parts,
    optional_text,
    text_of,
)
from components.tokenize_dataset.shapes import Shape
from components.tokenize_dataset.template_special import SpecialTokens
from components.tokenize_dataset.text_tokens import TextTokenizer, TokenizedRow, Tokens
from components.tokenize_dataset.unusable import UnusableRow, check_characters
from training.config import DataConfig
from training.errors import UserError
from training.sources.rows import Malformed, Row


class RawEncoder:
    """Encodes texts that no chat template renders; each ends with the model's end-of-text token.

    What spells a special token is refused unless the config says that it is one: here it could as well be meant as
    the token as as text.

    Args:
        data: The config.
        shape: What the source was found to be.
        tokenizer: A fast tokenizer.
        special: Its special tokens.
        texts: It, for many texts at once.

    Raises:
        UserError: The tokenizer has no end-of-text token, or `data.prompt_template` has no place for the
            instruction.
    """

    def __init__(
        self, data: DataConfig, shape: Shape, tokenizer: Any, special: SpecialTokens, texts: TextTokenizer
    ) -> None:
        if tokenizer.eos_token_id is None:
            raise UserError(
                f"the data has {shape.form}, but the model's tokenizer has no end-of-text token, so the model "
                "could not learn to stop: choose another model"
            )
        if shape.format == "instruction" and "{instruction}" not in (data.prompt_template or "{instruction}"):
            raise UserError(
                f"data.prompt_template is {data.prompt_template!r}, which has no place for the instruction: write "
                "{instruction} where it belongs"
            )
        self._data, self._shape, self._special, self._texts = data, shape, special, texts
        self._end = np.array([tokenizer.eos_token_id], np.int32)
        self._bos = _beginning(tokenizer)

    def encode(self, rows: Sequence[Row]) -> list[TokenizedRow | Malformed]:
        """Encode rows, in their order."""
        parts = [self._parts(row) for row in rows]
        good = [part for part in parts if not isinstance(part, Malformed)]
        # Apart, because at inference the prompt is tokenized without knowing what follows.
        before = iter(self._texts.ids([self._with_bos(prompt) for prompt, _ in good]))
        after = iter(self._texts.ids([answer for _, answer in good]))
        results: list[TokenizedRow | Malformed] = []
        for part in parts:
            if isinstance(part, Malformed):
                results.append(part)
                continue
            prompt, answer = part
            left, right = next(before), next(after)
            if self._shape.format == "text":
                right = np.concatenate([left, right])
                left = left[:0]
            elif prompt:
                right = self._texts.continued(right, answer)
            # A text that is rendered already may have its end.
            end = self._end[:0] if len(right) and right[-1] == self._end[0] else self._end
            ids = np.concatenate([left, right, end])
            tokens = Tokens(ids, np.arange(len(ids)) >= len(left))
            results.append(TokenizedRow([tokens], self._prompt(prompt, answer)))
        return results

    def _prompt(self, prompt: str, answer: str) -> dict[str, str] | None:
        if self._shape.format == "text":
            return None
        return {"prompt": self._with_bos(prompt), "question": prompt, "reference": answer}

    def _with_bos(self, text: str) -> str:
        """The text as it begins for the model; one that is rendered already may have its beginning."""
        return text if self._bos and text.startswith(self._bos.rstrip()) else self._bos + text

    def _parts(self, row: Row) -> tuple[str, str] | Malformed:
        """What the model is given, and what it learns to say; of a text the first is empty, and so the second."""
        try:
            check_form(row, self._shape)
            prompt, answer = self._read(row)
            for text in (prompt, answer):
                check_characters(text)
                token = self._special.first_in(text) if self._data.special_tokens == "refuse" else None
                if token is not None:
                    raise UnusableRow(
                        f"spells the special token {token!r} of the model, which could be meant as the token or "
                        "as text: set data.special_tokens to tokens if it is the token, remove it, or give the "
                        "row as a chat, whose template writes the special tokens"
                    )
        except UnusableRow as problem:
            return Malformed(row.origin, str(problem))
        return prompt, answer

    def _read(self, row: Row) -> tuple[str, str]:
        columns = self._shape.columns
        if self._shape.format == "text":
            text = text_of(row, columns["text"])
            if not text.strip():
                raise UnusableRow(f"has an empty text in '{columns['text']}': remove the row")
            return text, ""
        if self._shape.format == "instruction":
            prompt, answer = self._instruction(row)
        else:
            prompt, answer = text_of(row, columns["prompt"]), text_of(row, columns["completion"])
            if not answer.strip():
                raise UnusableRow(f"has an empty answer in '{columns['completion']}': add it, or remove the row")
        system = optional_text(row, columns.get("system")) or self._data.system_prompt
        return (f"{system}\n\n{prompt}" if system else prompt), answer

    def _instruction(self, row: Row) -> tuple[str, str]:
        template = self._data.prompt_template
        if template is None:
            question, answer = instruction(row, self._shape)
            return f"{question}\n\n", answer
        asked, given, answer = instruction_parts(row, self._shape)
        if given.strip() and "{input}" not in template:
            raise UnusableRow("has an input, but data.prompt_template has no {input}: add it there")
        values = {"instruction": asked, "input": given}
        return re.sub(r"\{(instruction|input)\}", lambda match: values[match[1]], template), answer


def _beginning(tokenizer: Any) -> str:
    """What a text begins with for a model that expects a token before every text; else empty."""
    bos, whole = tokenizer.bos_token, tokenizer("a").input_ids
    if bos is None or whole[:1] != [tokenizer.bos_token_id]:
        return ""
    # Some tokenizers write a space before a text only where it stands alone.
    ways = (bos, f"{bos} ")
    return next((way for way in ways if tokenizer(f"{way}a", add_special_tokens=False).input_ids == whole), bos)
